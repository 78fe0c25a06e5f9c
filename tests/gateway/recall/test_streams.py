"""Streams with recall rounds: text passes at once, ends are delayed, indexes are renumbered, breaks are passed on."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.gateway_server import gateway
from tests.gateway.payloads import HEADERS, STREAMED
from tests.gateway.scripted_model import opening
from tests.gateway.upstreams import KEYS, Raw, Reply, Upstream
from tests.provider import Answer, Call, Usage
from tests.provider.answer import Seen
from tests.provider.frames import frame
from tests.provider.sdk_agent import FORMATS, NAMES, SCHEMA, each_format
from tests.provider.server import DIALECTS as PROVIDERS

from kompakt.agent.recall import anthropic, gemini, openai_chat, openai_responses
from kompakt.agent.recall.sse import EventParser, read_data
from kompakt.agent.recall.tool import PROTOCOLS, can_offer
from kompakt.gateway.request.history import read

QUERY = {"query": "anything at all"}
EVENTS = {"content-type": "text/event-stream"}


def frames(format: str, answer: Answer, number: int = 1) -> list[bytes]:
    """Return an answer as the provider streams it."""
    seen = Seen(format, "test-model", True, None, [], None, [], None, "", [], [], [])
    body = {"stream_options": {"include_usage": True}, "include": ["reasoning.encrypted_content"]}
    return list(PROVIDERS[format].events(answer, seen, Usage(100, 10, 40), number, body))


def asked(format: str) -> dict[str, Any]:
    tools: list[Any] = [{"name": name, "description": name, "parameters": SCHEMA} for name in NAMES]
    if format == "openai-chat":
        tools = [{"type": "function", "function": tool} for tool in tools]
    elif format == "openai-responses":
        tools = [{"type": "function", **tool} for tool in tools]
    elif format == "anthropic":
        tools = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    else:
        tools = [{"functionDeclarations": tools}]
    said = {"role": "user", "parts": [{"text": "Hi."}]} if format == "gemini" else {"role": "user", "content": "Hi."}
    body: dict[str, Any] = {KEYS[format]: [*opening(format), said], "tools": tools}
    return (
        body
        if format == "gemini"
        else {**body, "model": "test-model", "max_tokens": 100, "store": False, "stream": True}
    )


class Planned:
    """An upstream that answers with the given streams in order."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)

    def __call__(self, raw: Raw) -> Reply:
        return self.replies.pop(0)


def streamed(url: str, format: str) -> Any:
    return httpx.stream("POST", url + STREAMED[format], json=asked(format), headers=HEADERS[format], timeout=120)


@each_format
def test_text_is_passed_on_immediately(format: str, tmp_path: Path) -> None:
    """Text before and after a recall call does not wait for later events."""
    first = frames(format, Answer("Look here.", (Call("c1", "recall", QUERY),)))
    second = frames(format, Answer("There it was."), 2)
    cut = next(at for at, each in enumerate(first) if b"Look here." in each) + 1
    held, late = threading.Event(), threading.Event()
    at = next(at for at, each in enumerate(second) if b"There it was." in each) + 1
    plan = Planned(
        Reply([b"".join(first[:cut]), b"".join(first[cut:])], 200, EVENTS, [held]),
        Reply([b"".join(second[:at]), b"".join(second[at:])], 200, EVENTS, [late]),
    )
    with (
        Upstream(plan) as upstream,
        gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
        streamed(gate.url, format) as answer,
    ):
        got, arriving = b"", answer.iter_raw()
        while b"Look here." not in got:
            got += next(arriving)
        assert not held.is_set()
        held.set()
        while b"There it was." not in got:
            got += next(arriving)
        assert not late.is_set()
        late.set()
        got += b"".join(arriving)
        assert b"recall" not in got
        assert upstream.raw[0].header("accept-encoding") == "identity"


@each_format
def test_a_stream_that_breaks_breaks_for_the_client(format: str, tmp_path: Path) -> None:
    first = frames(format, Answer("Look here.", (Call("c1", "recall", QUERY),)))
    second = frames(format, Answer("There it was, and so on and on."), 2)
    broken = Reply([b"".join(second[:-3]) or b": a comment\n\n"], 200, EVENTS, breaks=True)
    with (
        Upstream(Planned(Reply([b"".join(first)], 200, EVENTS), broken)) as upstream,
        gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
        pytest.raises(httpx.HTTPError),
        streamed(gate.url, format) as answer,
    ):
        for _ in answer.iter_raw():
            pass
    assert len(upstream.raw) == 2


@each_format
def test_a_later_round_that_breaks_before_its_first_byte_is_an_error_in_the_stream(format: str, tmp_path: Path) -> None:
    first = frames(format, Answer("Look here.", (Call("c1", "recall", QUERY),)))
    broken = Reply([b""], 200, EVENTS, breaks=True)
    with (
        Upstream(Planned(Reply([b"".join(first)], 200, EVENTS), broken)) as upstream,
        gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
        streamed(gate.url, format) as answer,
    ):
        assert b"the provider broke off its answer" in b"".join(answer.iter_raw())
    assert len(upstream.raw) == 2


@pytest.mark.parametrize("offers", [True, False])
def test_streams_without_recall_are_unchanged(offers: bool, tmp_path: Path) -> None:
    """With recall offered but not called the events are equal; with recall disabled the bytes are."""
    answer = Answer("Well.", (Call("c1", "read_file", {"path": "a"}),), thinking="Hm.")
    made = {format: b"".join(frames(format, answer)) for format in FORMATS}
    plan = Planned(*(Reply([made[format]], 200, EVENTS) for format in FORMATS))
    with Upstream(plan) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path}/k.db", recall=offers) as gate:
        for format in FORMATS:
            with streamed(gate.url, format) as answered:
                got = answered.read()
            assert got == made[format] if not offers else events_of(got) == events_of(made[format])
            assert (b"recall" in upstream.raw[-1].body) == offers


def events_of(stream: bytes) -> list[Any]:
    """Return what the events of a stream say."""
    data = [data for data, _ in EventParser().feed(stream)]
    return [one if one == b"[DONE]" else json.loads(one) for one in data]


ANSWERS = (
    Answer("One.", (Call("c1", "recall", QUERY),), thinking="Think."),
    Answer("", (Call("c2", "recall", QUERY), Call("c3", "recall", QUERY))),
    Answer("Two.", (Call("c4", "read_file", {"path": "a"}), Call("c5", "run_tests", {"path": "b"}))),
)


@each_format
@settings(max_examples=15, deadline=None)
@given(size=st.integers(1, 700), raised=st.sampled_from([0, 1_000]))
def test_a_stream_equals_the_whole_answer(format: str, size: int, raised: int) -> None:
    """For any chunks, the turns are equal and the client gets the same items, ids and usage."""
    protocol, body = PROTOCOLS[format], {"include": ["reasoning.encrypted_content"]}
    stream, got, events = protocol.stream("recall", body, raised), b"", EventParser()
    wholes = []
    for number, answer in enumerate(ANSWERS):
        answer = Answer(answer.text, answer.calls, answer.thinking, signature="c2ln" if answer.thinking else "")
        if number:
            stream.next_round()
        made = b"".join(frames(format, answer, number))
        for start in range(0, len(made), size):
            for data, raw in events.feed(made[start : start + size]):
                got += b"".join(stream.feed(data, raw))
        seen = Seen(format, "test-model", False, None, [], None, [], None, "", [], [], [])
        wholes.append(PROVIDERS[format].whole(answer, seen, Usage(100, 10, 40), number, body))
        assert stream.is_over and not stream.has_failed
        assert stream.turn() == protocol.turn(wholes[-1], "recall", body)
    got += b"".join(stream.end())
    assert b"recall" not in got
    again = protocol.stream("", body, 0)
    for data, raw in EventParser().feed(got):
        again.feed(data, raw)
    one = protocol.merge(wholes, "recall")
    assert _loosely(again.turn().items) == _loosely(protocol.turn(one, "", body).items)
    usage = protocol.usage(protocol.with_more_input(one, raised) if raised else one)
    assert (
        json.dumps(usage.get("total_tokens", usage.get("totalTokenCount", usage.get("input_tokens")))) in got.decode()
    )
    if format == "openai-responses":
        numbers = [event["sequence_number"] for event in events_of(got)]
        assert numbers == list(range(len(numbers)))
        assert events_of(got)[-1]["response"]["output"] == one["output"]
    if format == "anthropic":
        starts = [event["index"] for event in events_of(got) if event["type"] == "content_block_start"]
        assert starts == list(range(len(starts)))


def _loosely(items: list[Any]) -> Any:
    """Join adjacent texts: whether they are one part or two does not matter."""
    return json.dumps(items).replace('"}, {"text": "', "")


def test_a_call_is_held_back_while_its_name_may_be_recall() -> None:

    def chunk(*pieces: dict[str, Any]) -> bytes:
        return frame(
            {"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": list(pieces)}, "finish_reason": None}]}
        )

    def named(index: int, **function: str) -> dict[str, Any]:
        return {"index": index, "function": function}

    stream, events = PROTOCOLS["openai-chat"].stream("recall", {}, 0), EventParser()

    def feed(*pieces: dict[str, Any]) -> list[Any]:
        passed = [one for data, raw in events.feed(chunk(*pieces)) for one in stream.feed(data, raw)]
        return [one["choices"][0]["delta"]["tool_calls"] for one in events_of(b"".join(passed))]

    assert feed({**named(0, name="rec"), "id": "a"}) == []
    assert feed(named(0, name="all")) == []
    assert feed(named(0, arguments="{}")) == []
    assert feed({**named(1, name="rec"), "id": "b"}) == []
    assert feed(named(1, name="ord")) == [[{**named(0, name="rec"), "id": "b"}, named(0, name="ord")]]
    assert feed(named(1, arguments="{}")) == [[named(0, arguments="{}")]]
    assert feed({**named(2, name="recall_all"), "id": "c"}) == [[{**named(1, name="recall_all"), "id": "c"}]]
    assert [call.name for call in stream.turn().calls] == ["recall", "record", "recall_all"]


CUT = {
    "openai-chat": ('"finish_reason": "tool_calls"', '"finish_reason": "length"'),
    "openai-responses": ("completed", "incomplete"),
    "anthropic": ('"stop_reason": "tool_use"', '"stop_reason": "max_tokens"'),
    "gemini": ('"finishReason": "STOP"', '"finishReason": "MAX_TOKENS", "finishMessage": "Malformed call: recall(que"'),
}
"""The end of a complete answer, and the end of a truncated one."""

REASONS = {
    "openai-chat": '"length"',
    "openai-responses": '"incomplete"',
    "anthropic": '"max_tokens"',
    "gemini": '"MAX_TOKENS"',
}


def cut_off(format: str) -> list[bytes]:
    """Return a stream that ends, by max_tokens, in the middle of the input of a call of the tool."""
    whole = frames(format, Answer("Look here.", (Call("c1", "recall", QUERY),)))
    pieces = [at for at, each in enumerate(whole) if b"partial_json" in each or b'"arguments": "' in each]
    gone = pieces[-1] if format in ("openai-chat", "anthropic") else -1
    half = json.dumps(json.dumps(QUERY))[1:-1]
    left = [each.decode().replace(half, half[:12]).replace(*CUT[format]) for each in whole]
    return [each.encode() for at, each in enumerate(left) if at != gone]


class TestACallThatIsCutOff:
    @each_format
    def test_by_max_tokens_is_hidden(self, format: str, tmp_path: Path) -> None:
        """The client sees the text before it and the stop reason."""
        made = cut_off(format)
        with (
            Upstream(Planned(Reply([b"".join(made)], 200, EVENTS))) as upstream,
            gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
            streamed(gate.url, format) as answer,
        ):
            got = answer.read()
        assert len(upstream.raw) == 1
        assert b"recall" in b"".join(made) and b"recall" not in got and b"c1" not in got
        assert b"Look" in got and REASONS[format] in json.dumps(events_of(got)[-3:], default=str)
        if format == "anthropic":
            begun = [one["index"] for one in events_of(got) if one["type"] == "content_block_start"]
            assert [one["index"] for one in events_of(got) if one["type"] == "content_block_stop"] == begun

    @each_format
    @settings(max_examples=30, deadline=None)
    @given(share=st.floats(0, 1))
    def test_by_the_end_of_the_stream_is_hidden(self, format: str, share: float) -> None:
        """Wherever the provider stops, the client gets whole events without the call."""
        made = b"".join(frames(format, Answer("Look here.", (Call("c1", "recall", QUERY),))))
        stream, events = PROTOCOLS[format].stream("recall", {}, 0), EventParser()
        got = b""
        for data, raw in (*events.feed(made[: int(len(made) * share)]), *events.last()):
            got += b"".join(stream.feed(data, raw))
        got += b"".join(stream.end())
        assert b"recall" not in got and b"c1" not in got
        assert got == b"" or got.endswith(b"\n\n")
        events_of(got)

    def test_a_client_call_whose_name_is_a_prefix_of_recall_is_visible(self) -> None:
        """It has no arguments, so only the end of the answer shows that it is not a recall call."""
        stream = PROTOCOLS["openai-chat"].stream("recall", {}, 0)

        def feed(delta: dict[str, Any], reason: str | None = None) -> list[Any]:
            body = {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            return events_of(b"".join(stream.feed(json.dumps(body).encode(), b"raw")))

        call = {"index": 0, "id": "a", "function": {"name": "rec", "arguments": ""}}
        assert feed({"tool_calls": [call]}) == []
        (passed,) = feed({}, "tool_calls")
        assert passed["choices"][0]["delta"]["tool_calls"] == [call]
        (end,) = events_of(b"".join(stream.end()))
        assert end["choices"][0]["finish_reason"] == "tool_calls"

    def test_the_tool_is_not_offered_with_streamed_arguments(self) -> None:
        """Gemini then names a call only in its first part."""
        calling = {"functionCallingConfig": {"streamFunctionCallArguments": True}}
        bodies = [asked("gemini"), {**asked("gemini"), "toolConfig": calling}]
        requests = [read(json.dumps(body).encode(), "gemini") for body in bodies]
        assert [can_offer("gemini", one.field) for one in requests if one is not None] == [True, False]


class CountedText(str):
    """A text that counts the characters copied by concatenation."""

    copied = 0

    def __add__(self, other: str) -> CountedText:
        return self._concatenated(str.__add__(self, other))

    def __radd__(self, other: str) -> CountedText:
        return self._concatenated(str.__add__(other, self))

    def _concatenated(self, whole: str) -> CountedText:
        CountedText.copied += len(whole)
        return CountedText(whole)


def counted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: counted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [counted(inner) for inner in value]
    return CountedText(value) if isinstance(value, str) and len(value) == LONG else value


LONG = 100
"""Characters of each delta; only texts of this length are counted."""


def deltas(format: str, count: int) -> list[dict[str, Any]]:
    """Return the events of an answer whose text, thinking and tool input come in many deltas."""
    piece = "x" * LONG
    if format == "openai-chat":
        call = {"index": 0, "function": {"name": "recall", "arguments": ""}}
        more: dict[str, Any] = {"content": piece, "reasoning": piece}
        grown = {**more, "tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
        made = [{"tool_calls": [call]}, *[grown] * count]
        end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        return [*({"choices": [{"delta": delta, "finish_reason": None}]} for delta in made), end]
    if format == "anthropic":
        blocks = [("text", "text"), ("thinking", "thinking"), ("tool_use", "partial_json")]
        events: list[dict[str, Any]] = []
        for at, (kind, key) in enumerate(blocks):
            events.append({"type": "content_block_start", "index": at, "content_block": {"type": kind}})
            events += [{"type": "content_block_delta", "index": at, "delta": {key: piece}}] * count
        return [*events, {"type": "message_stop"}]
    if format == "gemini":
        parts = [[{"text": piece, "thought": True}]] * count + [[{"text": piece}]] * count
        return [{"candidates": [{"content": {"parts": one}}]} for one in parts]
    item = {"type": "message", "content": [{"type": "output_text", "text": piece * count}]}
    events = [{"type": "response.output_text.delta", "output_index": 0, "delta": piece}] * count
    return [*events, {"type": "response.completed", "response": {"output": [item]}}]


@each_format
def test_streamed_text_is_copied_in_proportion_to_its_length(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deltas are joined once: concatenating them one by one would copy the whole text for each of them."""
    for module in (anthropic, gemini, openai_chat, openai_responses):
        monkeypatch.setattr(module, "read_data", lambda data: counted(read_data(data)))
        monkeypatch.setattr(module, "event", lambda *_: b"")  # encoders refuse subclasses of str
    monkeypatch.setattr(CountedText, "copied", 0)
    count = 500
    stream = PROTOCOLS[format].stream("recall", {}, 0)
    for one in deltas(format, count):
        stream.feed(json.dumps(one).encode(), b"")
    assert "x" * LONG * count in json.dumps(stream.turn().items)
    assert CountedText.copied <= 4 * LONG * count
