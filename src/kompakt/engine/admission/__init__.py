"""Admission: large tool outputs are compressed by kind before they first enter the context."""

from kompakt.engine.admission.admit import Admitted, admit, admit_message
from kompakt.engine.admission.lines import Seen
from kompakt.engine.admission.settings import DEFAULT, FIRM, GENTLE, KINDS, AdmissionSettings, level_named

__all__ = [
    "DEFAULT",
    "FIRM",
    "GENTLE",
    "KINDS",
    "AdmissionSettings",
    "Admitted",
    "Seen",
    "admit",
    "admit_message",
    "level_named",
]
