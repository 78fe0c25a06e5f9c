"""Recall: search by words and byte-exact fetch by reference over the original history."""

from kompakt.engine.recall.answer import Hit, Recalled
from kompakt.engine.recall.index import Index
from kompakt.engine.recall.memory import DEFAULT_TOKENS, Memory

__all__ = ["DEFAULT_TOKENS", "Hit", "Index", "Memory", "Recalled"]
