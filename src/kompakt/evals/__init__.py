"""Benchmark for compaction: measure a policy on recorded sessions."""

from kompakt.evals.case import cases, record
from kompakt.evals.measures.score import read, score
from kompakt.evals.session_files import sessions

__all__ = ["cases", "read", "record", "score", "sessions"]
