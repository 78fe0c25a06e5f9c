"""The benchmark: recorded sessions in, measured promises out."""

from kompakt.evals.measures.measure import read, score
from kompakt.evals.sources.case import cases, record
from kompakt.evals.sources.data import sessions

__all__ = ["cases", "read", "record", "score", "sessions"]
