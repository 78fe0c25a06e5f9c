"""Clients that rewrite their histories at random: requests are valid, fit, repeat and have only their texts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.client_variants import marked, plain
from tests.gateway.gateway_server import WINDOW, gateway
from tests.gateway.payloads import FILLER, HEADERS, PATHS, answering, one_round, request
from tests.gateway.upstreams import KEYS, Upstream
from tests.judges import judge
from tests.provider.token_count import count_head, count_item

EXAMPLES = max(8, int(os.environ.get("KOMPAKT_EXAMPLES", "100")) // 8)
TAG = re.compile(r"tag\d{6}x")
_numbers = count(1)


def fresh() -> str:
    """Return a new word."""
    return f"tag{next(_numbers):06d}x"


class Writer:
    """A client that may change anything in its history; a tag identifies each of its texts."""

    def __init__(self, format: str, rounds: int) -> None:
        self.format = format
        text = f"Keep to the plan of {fresh()} and never touch the migrations folder."
        user: Any = (
            {"role": "user", "parts": [{"text": text}]} if format == "gemini" else {"role": "user", "content": text}
        )
        self.task, self.items, self.at = text, [user], 0
        self.strings, self.marks = False, False
        self.grow(rounds, 60)

    def grow(self, rounds: int, size: int) -> None:
        """Add calls with results."""
        for _ in range(rounds):
            self.at += 1
            self.items += one_round(self.format, self.at, FILLER * size + fresh())

    def fork(self, at: int) -> None:
        """Go back to a point without open calls and continue differently."""
        self.items = self.items[: 1 + 2 * (at % max(1, len(self.items) // 2))]
        self.grow(1, 5)

    def edit(self, at: int) -> None:
        """Change one result that was sent before."""
        rounds = (len(self.items) - 1) // 2
        if rounds:
            place = 2 + 2 * (at % rounds)
            number = re.search(r"call_(\d+)", json.dumps(self.items[place]))
            assert number is not None
            self.items[place] = one_round(self.format, int(number.group(1)), FILLER * 3 + fresh())[1]

    def regenerate(self) -> None:
        """Replace the last answer and its result."""
        if len(self.items) > 2:
            self.items = self.items[:-2]
            self.grow(1, 8)

    def body(self) -> dict[str, Any]:
        """Return the current request."""
        items = self.items
        if self.format == "anthropic":
            items = [plain(item) if self.strings else item for item in items]
            items = [*items[:-1], marked(items[-1])] if self.marks else items
        return request(self.format, items)


STEPS = st.one_of(
    st.tuples(st.just("grow"), st.integers(1, 3), st.sampled_from([5, 40, 150])),
    st.tuples(st.just("fork"), st.integers(0, 40), st.just(0)),
    st.tuples(st.just("edit"), st.integers(0, 40), st.just(0)),
    st.tuples(st.just("regenerate"), st.just(0), st.just(0)),
    st.tuples(st.just("reshape"), st.just(0), st.just(0)),
    st.tuples(st.just("again"), st.just(0), st.just(0)),
)


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    store = tmp_path_factory.mktemp("edits") / "k.db"
    with (
        Upstream(answering) as upstream,
        gateway(upstream.url, store=f"sqlite:///{store}") as gate,
        httpx.Client(base_url=gate.url, timeout=120) as client,
    ):

        def ask(format: str, body: dict[str, Any]) -> tuple[httpx.Response, bytes]:
            answer = client.post(PATHS[format], content=json.dumps(body).encode(), headers=HEADERS[format])
            return answer, upstream.raw[-1].body

        yield ask


def check(format: str, writer: Writer, answer: httpx.Response, sent: bytes) -> None:
    """Check the invariants of an upstream request."""
    assert answer.status_code == 200, answer.text
    body, text = json.loads(sent), sent.decode()
    asked = {**body, "model": "gemini-3-pro"} if format == "gemini" else body
    assert judge(format, asked) == []
    tokens = count_head(None, body["tools"]) + sum(count_item(item) for item in body[KEYS[format]])
    assert tokens + 500 <= WINDOW
    assert writer.task in text
    own = set(TAG.findall(json.dumps(writer.items)))
    assert set(TAG.findall(text)) <= own
    newest = TAG.findall(json.dumps(writer.items[-1]))
    assert set(newest) <= set(TAG.findall(text))


@pytest.mark.parametrize("format", ["openai-chat", "anthropic", "openai-responses", "gemini"])
@settings(max_examples=EXAMPLES)
@given(steps=st.lists(STEPS, min_size=2, max_size=7), rounds=st.integers(6, 30))
def test_any_edits(format: str, steps: list[Any], rounds: int, asking: Any) -> None:
    writer = Writer(format, rounds)
    answer, sent = asking(format, writer.body())
    check(format, writer, answer, sent)
    for name, one, two in steps:
        before = sent
        if name == "grow":
            writer.grow(one, two)
        elif name in ("fork", "edit"):
            getattr(writer, name)(one)
        elif name == "regenerate":
            writer.regenerate()
        elif name == "reshape":
            writer.strings, writer.marks = not writer.strings, not writer.marks
        answer, sent = asking(format, writer.body())
        check(format, writer, answer, sent)
        if name == "again":
            assert sent == before
