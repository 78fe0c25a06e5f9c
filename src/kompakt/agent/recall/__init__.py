"""The recall tool: offered to the model, answered here, and never seen by the caller."""
