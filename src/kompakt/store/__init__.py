"""Append-only histories of many sessions: one protocol, four places to keep them."""
