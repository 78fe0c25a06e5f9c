"""Shortening of large tool outputs before a model first sees them."""

from kompakt.engine.admission import DEFAULT, FIRM, GENTLE, KINDS, Admitted, Seen, Settings, admit, admit_message

__all__ = ["DEFAULT", "FIRM", "GENTLE", "KINDS", "Admitted", "Seen", "Settings", "admit", "admit_message"]
