"""Similarity of meaning with static word vectors, if the extra ``recall`` is installed. No model runs.

The vector of a text is the sum of its words' vectors, weighted by their rarity, minus the mean of all texts of the
history. It finds turns that express the query in other words, in addition to the search by words. Cost: the words of
all texts once, then one product per query. The vectors are computed again when the history has grown.
"""

from __future__ import annotations

import math
import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kompakt.engine.recall.terms import STOP

_WORD = re.compile(r"[^\W\d_]+|\d+")
_NEEDED = ("numpy", "safetensors", "tokenizers", "wordllama")
_FILES = ("tokenizers/l2_supercat_tokenizer_config.json", "weights/l2_supercat_256.safetensors")


@cache
def available() -> bool:
    """Return whether the word vectors and the packages that read them are installed."""
    return all(find_spec(name) is not None for name in _NEEDED) and all(path.is_file() for path in _paths())


def _paths() -> list[Path]:
    """Find the files of the package without importing it, because its own loader needs a network."""
    found = find_spec("wordllama")
    folders = (found.submodule_search_locations if found else None) or []
    return [Path(folder, name) for folder in list(folders)[:1] for name in _FILES]


@cache
def _loaded() -> tuple[Any, Any]:
    """Read the tokenizer and the vectors."""
    load_file: Any = import_module("safetensors.numpy").load_file  # late, here and below: an optional extra
    tokenizer_type: Any = import_module("tokenizers").Tokenizer
    words, vectors = map(str, _paths())
    tokenizer: Any = tokenizer_type.from_file(words)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    (table,) = load_file(vectors).values()
    return tokenizer, table.astype("float32")


@cache
def _vector(word: str) -> Any:
    tokenizer, table = _loaded()
    ids = tokenizer.encode(word, add_special_tokens=False).ids
    return table[ids].mean(0) if ids else table[:1].mean(0) * 0


def _words(text: str) -> list[str]:
    return [word for word in map(str.lower, _WORD.findall(text)) if word not in STOP]


class Meaning:
    """The vectors of some texts of a history."""

    __slots__ = ("_common", "_frequency", "_made", "_texts", "_vectors", "places")

    def __init__(self) -> None:
        self.places: list[int] = []
        """The passages that have a vector."""
        self._texts: list[list[str]] = []
        self._frequency: dict[str, int] = {}
        self._made = 0
        self._vectors: Any = None
        self._common: Any = None

    def add(self, place: int, text: str) -> None:
        """Add the text of a passage."""
        words = _words(text)
        self.places.append(place)
        self._texts.append(words)
        for word in set(words):
            self._frequency[word] = self._frequency.get(word, 0) + 1

    def likeness(self, query: str, *, without: frozenset[str]) -> list[float]:
        """Return the similarity of each text to a query, from 0 to 1; words in ``without`` are ignored."""
        words = [word for word in _words(query) if word not in without]
        if not words or not self.places:
            return []
        self._make(without)
        asked = _unit(self._sum(words) - self._common)
        return [max(0.0, float(near)) for near in self._vectors @ asked]

    def _make(self, without: frozenset[str]) -> None:
        """Compute the vectors if there are new texts."""
        if self._made == len(self._texts):
            return
        stack: Any = import_module("numpy").stack
        sums = stack([self._sum([word for word in words if word not in without]) for words in self._texts])
        self._common = sums.mean(0)
        self._vectors = stack([_unit(one - self._common) for one in sums])
        self._made = len(self._texts)

    def _sum(self, words: list[str]) -> Any:
        """Return the sum of the words' vectors, weighted by rarity and scaled to length one."""
        total: Any = _vector("")
        for word in words:
            total = total + _vector(word) * math.log(1 + len(self._texts) / (1 + self._frequency.get(word, 0)))
        return _unit(total)


def _unit(vector: Any) -> Any:
    return vector / (math.sqrt(float(vector @ vector)) + 1e-9)
