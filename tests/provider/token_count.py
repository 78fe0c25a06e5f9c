"""The provider's own token count: texts are tokenized, frames have a flat rate.

It shares the vocabulary o200k with most clients and nothing else, so a client's estimate is near and never equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from rs_bpe.bpe import openai

PER_ITEM = 4
PRIMING = 3
PER_MEDIUM = 800

UNCOUNTED = frozenset(
    [
        "type",
        "role",
        "id",
        "call_id",
        "tool_call_id",
        "tool_use_id",
        "status",
        "cache_control",
        "signature",
        "thoughtSignature",
        "encrypted_content",
        "mimeType",
        "media_type",
        "detail",
        "is_error",
    ]
)
DATA = frozenset(["input", "args", "response", "arguments"])
MEDIA = frozenset(["data", "url", "image_url", "file_data"])


@lru_cache(maxsize=100_000)
def count_text(text: str) -> int:
    """Count the tokens of a text."""
    return int(openai.o200k_base().count(text))


def count_item(item: Any) -> int:
    """Count one message, content or input item."""
    return PER_ITEM + _count(item)


def count_head(system: Any, tools: Any) -> int:
    """Count everything before the messages."""
    declared = sum(PER_ITEM + count_text(json.dumps(tool)) for tool in tools or [])
    return PRIMING + (PER_ITEM + _count(system) if system else 0) + declared


def leaves(value: Any) -> Iterator[str]:
    """Yield every string in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)


def _count(value: Any, key: str = "") -> int:
    if isinstance(value, str):
        return PER_MEDIUM if key in MEDIA and len(value) > 200 else count_text(value)
    if isinstance(value, list):
        return sum(_count(item, key) for item in value)
    if not isinstance(value, dict):
        return 0
    if key in DATA:
        return count_text(json.dumps(value))
    return sum(_count(inner, name) for name, inner in value.items() if name not in UNCOUNTED)
