"""Facts taken from a history by code, each with its reference: what a summary must not lose."""
