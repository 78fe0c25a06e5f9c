"""The benchmark: recorded sessions in, measured promises out."""

from kompakt.evals.data import sessions
from kompakt.evals.measure import read, score
from kompakt.evals.recording import cases, record

__all__ = ["cases", "read", "record", "score", "sessions"]
