"""Sessions in a store: append, project, compact, undo, recall."""
