"""The few sentences kompakt itself puts into a history.

Each is fixed, so that the same history gives the same bytes, and marked, so that nobody takes it for the user's.
"""

from __future__ import annotations

MARKER_QUESTION = "What was done so far?"
"""How a request to compact is shown to a model."""

RESUME_LINE = "[kompakt: the conversation continues here]"
"""Stands on the user's side where a provider wants the user first and the history begins with the assistant."""

CONTINUE_LINE = "Continue."
"""Stands on the user's side where a provider wants the user last and the history ends with the assistant."""

NO_OUTPUT = "(no output)"
"""Stands where a provider refuses an empty text."""
