"""Compression of large tool outputs before a model first reads them."""

from kompakt.engine.admission import DEFAULT, FIRM, GENTLE, KINDS, Admitted, Seen, admit, admit_message
from kompakt.engine.admission import AdmissionSettings as Settings

__all__ = ["DEFAULT", "FIRM", "GENTLE", "KINDS", "Admitted", "Seen", "Settings", "admit", "admit_message"]
