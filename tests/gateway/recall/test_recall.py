"""The model calls recall without the client noticing: one answer, one stream, and a stable prefix."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.client_sessions import TASK, Talk, needle, result_of
from tests.gateway.gateway_server import KEYS, Gate, gateway, hashed
from tests.gateway.scripted_model import (
    Model,
    Shared,
    each_case,
    held,
    id_of,
    opening,
    output_of,
    prompt_of,
    read,
    recall,
    recalling,
    said,
    sharing,
    sound,
    talking,
    text_of,
    words,
)
from tests.gateway.upstreams import KEYS as KEYS_OF
from tests.gateway.upstreams import wait_for
from tests.judges import judge
from tests.provider.script import PREFIX
from tests.provider.sdk_agent import ERRORS, FORMATS, each_format, each_way

import kompakt
from kompakt.errors import StoreUnavailable
from kompakt.store.sql.sqlite import SqliteRecords

FIRST = "abcdef01_00001_0"


@pytest.fixture(scope="module", name="shared")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with sharing(tmp_path_factory.mktemp("gateway")) as made:
        yield made


def first_call(format: str) -> str:
    return PREFIX[format] + FIRST


def shown(format: str, *texts: str) -> str:
    """Return what a client sees of the texts of several rounds."""
    return ("\n\n" if format in ("openai-chat", "gemini") else "|").join(texts)


def plan(format: str) -> Any:
    return (
        ("Let me look.", [read()]),
        ("I had this.", [recall(needle(first_call(format)))]),
        ("Found it.", [read("src/b.py")]),
        ("Done.", []),
        ("", [recall("marker")]),
        ("", [recall(needle(first_call(format)))]),
        ("All said.", []),
        ("Bye.", []),
    )


@each_format
@each_way
def test_rounds_are_hidden_answered_and_replayed(format: str, stream: bool, shared: Shared) -> None:
    """The fake provider accepts signed thinking only at its original position."""
    model = Model(*plan(format), thinking=format != "openai-chat")
    with held(shared, model, format, stream=stream) as (talk, provider, gate):
        before = gate.metric("kompakt_recall_calls_total")
        talk.say(TASK)
        assert talk.step() and talk.step()
        if format != "gemini" or not stream:
            assert text_of(talk.last, format) == shown(format, "I had this.", "Found it.")
        if format == "openai-chat":
            assert talk.last.choices[0].message.role == "assistant"
        used = [record.usage for record in provider.requests[1:3]]
        assert prompt_of(talk.last, format) == sum(one.prompt for one in used)
        assert output_of(talk.last, format) == sum(one.output for one in used)
        assert id_of(talk.last, format).endswith(f"{provider.requests[1].number:06d}")
        assert not talk.step()
        for text in ("And now?", "Thanks."):
            talk.say(text)
            assert not talk.step()
        assert len(provider.asked) == 8 and len(talk.answers) == 5
        assert "recall" not in said(talk) and "recall" not in str(talk.last)
        sound(provider, format)
        assert result_of(first_call(format)).splitlines()[4] in words(provider.asked[2], format)
        assert words(provider.asked[-1], format).count('"recall"') >= 3
        assert gate.metric("kompakt_recall_calls_total") == before + 3


@each_format
@each_way
def test_a_mixed_turn_forwards_the_clients_calls_and_merges_results(format: str, stream: bool, shared: Shared) -> None:
    own, hidden = [read("src/b.py"), read("src/c.py")], recall(needle(first_call(format)))
    model = Model(
        ("Let me look.", [read()]),
        ("Once more.", [recall("marker")]),
        ("All at once.", [hidden, *own]),
        ("Again.", [own[0], hidden, own[1]]),
        ("And again.", [*own, hidden]),
        ("Good.", [read("src/d.py")]),
        ("Done.", []),
        thinking=format == "anthropic",
    )
    with held(shared, model, format, stream=stream) as (talk, provider, _):
        assert talk.run(TASK) == 6
        assert len(provider.asked) == 7
        assert "recall" not in said(talk)
        assert len(talk.calls) == 8
        sound(provider, format)
        last = words(provider.asked[-1], format)
        assert last.count('"recall"') >= 4
        assert all(needle(call) in last for call in talk.calls)
        own = {**provider.asked[-1].json, KEYS_OF[format]: talk.items[:-1]}  # the client's own view is sound by itself
        assert judge(format, {**own, "model": "gemini-3-pro"} if format == "gemini" else own) == []


def test_the_tool_gets_another_name_if_the_client_has_one_of_that_name(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.provider.sdk_agent.NAMES", ("read_file", "recall"))
    own, hidden = ("recall", {"path": "mine"}), recall("marker", "kompakt_recall")
    for format in FORMATS:
        model = Model(("", [own]), ("", [hidden]), ("Done.", []))
        with held(shared, model, format) as (talk, provider, _):
            assert talk.run(TASK) == 2
            assert len(talk.calls) == 1 and len(provider.asked) == 3
            assert "kompakt_recall" not in said(talk)
            assert "the marker here is" in words(provider.asked[2], format)
            sound(provider, format)


@each_case
def test_recall_rounds_are_limited(format: str, stream: bool, shared: Shared) -> None:
    """A model that always recalls gets five answers, then a request without the tool; the client gets an answer."""
    with held(shared, Model(("Again.", [recall("anything")])), format, stream=stream) as (talk, provider, _):
        talk.say(TASK)
        assert not talk.step()
        assert len(provider.asked) == 7
        assert "Continue with what you have" in words(provider.asked[-1], format)
        assert all(b"Search or restore earlier" in raw.body for raw in provider.asked[:-1])
        assert b"Search or restore earlier" not in provider.asked[-1].body
        assert "recall" not in said(talk) and "Again." in said(talk)
        assert [record.refusal for record in provider.refusals] == []


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
RESTRICTED: dict[str, list[dict[str, Any]]] = {
    "openai-chat": [
        {"tool_choice": "none"},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "read_file"}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
    ],
    "openai-responses": [
        {"tool_choice": "none"},
        {"tool_choice": {"type": "function", "name": "read_file"}},
        {"text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA}}},
        {"store": True},
    ],
    "anthropic": [
        {"tool_choice": {"type": "none"}},
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "read_file"}},
    ],
    "gemini": [
        {"tool_config": {"function_calling_config": {"mode": "NONE"}}},
        {"tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["read_file"]}}},
        {"response_mime_type": "application/json", "response_schema": {"type": "OBJECT"}},
    ],
}
"""Requests that forbid or force calls, ask for a structured answer, or let the provider store the conversation."""


@each_format
def test_the_tool_is_not_offered_where_it_would_change_the_request(format: str, shared: Shared) -> None:
    """Not without tools, not in restricted requests, and not before something is hidden; the next request has it."""
    with held(shared, Model(("Done.", [])), format) as (talk, provider, _):
        for extra in RESTRICTED[format]:
            talk.extra = extra
            talk.say(TASK)
            talk.step()
        talk.extra, talk.tools = {}, False
        talk.say(TASK)
        talk.step()
        talk.tools = True
        assert all(b"recall" not in raw.body for raw in provider.asked)
        assert talk.answers[0]["x-kompakt-outcome"] == "compacted"
        talk.say("And now?")
        talk.step()
        assert b'"recall"' in provider.asked[-1].body
        assert [record.refusal for record in provider.refusals] == []


@each_format
def test_a_request_that_hides_nothing_keeps_its_bytes(format: str, shared: Shared) -> None:
    provider, gate = shared
    provider.script = Model(("Look.", [read()]), ("Done.", []))
    del provider.raw[:], provider.requests[:]
    with talking(gate, format, joined=False, headers={"x-tenant": f"bytes-{format}"}) as talk:
        sent: list[bytes] = []
        client = getattr(talk, {"anthropic": "anthropic", "gemini": "genai"}.get(format, "openai"))
        inner = client._api_client._httpx_client if format == "gemini" else client._client
        inner.event_hooks = {**inner.event_hooks, "request": [lambda request: sent.append(request.content)]}
        assert talk.run(TASK) == 2
        assert [raw.body for raw in provider.asked] == sent


@pytest.mark.parametrize("format", ["openai-chat", "anthropic"])
def test_replicas_agree_on_rounds(format: str, tmp_path: Path) -> None:
    """Requests that alternate between gateways are sent as from one gateway."""
    bodies: list[list[bytes]] = []
    for replicas in (1, 2):
        folder = tmp_path / str(replicas)
        folder.mkdir()
        with recalling(Model(*plan(format)), folder) as (provider, gate), ExitStack() as stack:
            other = gate
            if replicas == 2:
                other = stack.enter_context(gateway(provider.url, store=gate.store, context_window=64_000))
            items = opening(format)
            for step in range(5):
                with talking(other if step % 2 else gate, format) as talk:
                    talk.items = items
                    if step in (0, 3, 4):
                        talk.say(TASK)
                    talk.step()
            sound(provider, format)
            bodies.append([raw.body for raw in provider.asked])
    assert bodies[0] == bodies[1] and len(bodies[0]) == 8


@each_case
def test_a_retried_request_reuses_its_rounds(format: str, stream: bool, shared: Shared) -> None:
    """The provider fails after a round: the client gets the error, and the retry does not recall again."""
    model = Model(("Let me see.", [recall("anything")]), ("Done.", []), ("Bye.", []))
    with held(shared, model, format, stream=stream) as (talk, provider, _):
        provider.fault(2, "503")
        talk.say(TASK)
        with pytest.raises(
            (*ERRORS, RuntimeError)
        ):  # OpenAI's client says so of the error that its interface documents
            talk.step()
        assert not talk.step()
        assert len(provider.asked) == 3
        assert provider.asked[1].body == provider.asked[2].body
        assert "Done." in said(talk) and "Let me see." not in said(talk)
        talk.say("Thanks.")
        talk.step()
        sound(provider, format)


A, B = KEYS


def test_recall_stays_on_the_requests_own_chain(tmp_path: Path) -> None:
    """It finds nothing of another tenant or of another branch of the conversation."""
    statement = "It is zanzibar-4711."
    asks = [step for _ in range(4) for step in (("", [recall("zanzibar-4711")]), ("Done.", []))]
    model = Model((statement, []), ("Fine.", []), *asks)
    with recalling(model, tmp_path, keys=hashed(KEYS)) as (provider, gate):
        talk = Talk(gate.url, "openai-chat", headers={"x-kompakt-key": A})
        talk.items, start = opening("openai-chat"), len(opening("openai-chat"))
        talk.say(TASK)
        talk.step()
        talk.say("Go on.")
        talk.step()
        other = {"role": "assistant", "content": "No idea."}
        for key, end in ((A, []), (A, [other]), (B, [])):
            branch = Talk(gate.url, "openai-chat", headers={"x-kompakt-key": key})
            branch.items = [*talk.items[: start + 1], *end, {"role": "user", "content": "What was it?"}]
            branch.step()
            branch.close()
            assert "nothing" in words(provider.asked[-1], "openai-chat").lower()
            assert statement not in words(provider.asked[-1], "openai-chat")
        talk.say("What was it?")
        talk.step()
        assert statement in words(provider.asked[-1], "openai-chat").rpartition("tool_call_id")[2]
        talk.close()


def test_recall_finds_no_later_messages(shared: Shared) -> None:
    """After a client removed its newest messages, recall covers only the messages of the request."""
    asks = (("", [recall("zanzibar-4711")]), ("Done.", []))
    model = Model(("Fine.", []), ("It is zanzibar-4711.", []), ("Good.", []), *asks)
    with held(shared, model, "openai-chat") as (talk, provider, gate):
        start = len(talk.items)
        for text in (TASK, "Go on.", "And on."):
            talk.say(text)
            talk.step()
        wait_for(lambda: asyncio.run(_messages(gate, talk)) == start + 5, "all is recorded")
        del talk.items[start + 3 :]
        talk.step()
        assert talk.answers[-1]["x-kompakt-session"] == talk.answers[0]["x-kompakt-session"]
        assert "zanzibar-4711." not in words(provider.asked[-1], "openai-chat")


async def _messages(gate: Gate, talk: Talk) -> int:
    store = await kompakt.open_store(gate.store, tenant=talk._headers["x-tenant"])
    try:
        session = await store.session(talk.session)
        return (await session.head()).messages if await session.exists() else 0
    finally:
        await store.close()


def failing(name: str, folder: Path) -> Any:
    """Return a method that fails for the store in a folder. The gateway that other tests share keeps its store."""
    original = getattr(SqliteRecords, name)

    async def down() -> Any:
        raise StoreUnavailable("down")

    def call(records: SqliteRecords, *arguments: Any, **named: Any) -> Any:
        return down() if str(folder) in records.place else original(records, *arguments, **named)

    return call


def test_recall_survives_a_store_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversations continue, the model reads that recall is unavailable, and no request fails."""

    model = Model(("Look.", [read()]), ("", [recall("marker")]), ("Done.", []), ("Bye.", []), ("Hello.", []))
    with recalling(model, tmp_path) as (provider, gate), talking(gate, "openai-chat") as talk:
        talk.say(TASK)
        assert talk.step()
        for name in ("notes", "note", "rows", "commit", "head", "events", "named", "search"):
            monkeypatch.setattr(SqliteRecords, name, failing(name, tmp_path))
        assert not talk.step()
        assert text_of(talk.last, "openai-chat") == "Done."
        assert "cannot be recalled" in words(provider.asked[-1], "openai-chat")
        talk.say("Thanks.")
        talk.step()
        sound(provider, "openai-chat")
        with talking(gate, "openai-chat") as new:
            new.say("Something else.")
            new.step()
        assert provider.refusals == []


def test_thinking_of_hidden_rounds_is_dropped_with_the_clients(shared: Shared) -> None:
    """Signed thinking is valid only at its position: if the client drops its own, that of the round is dropped too."""
    model = Model(("Hm.", [recall("anything")]), ("Look.", [read()]), ("Done.", []), ("Bye.", []), thinking=True)
    with held(shared, model, "anthropic") as (talk, provider, _):
        talk.say(TASK)
        assert talk.step() and not talk.step()
        for item in talk.items:
            if item["role"] == "assistant" and isinstance(item["content"], list):
                item["content"] = [block for block in item["content"] if block["type"] != "thinking"]
        talk.say("And now?")
        talk.step()
        assert [record.refusal for record in provider.refusals] == []
        last = words(provider.asked[-1], "anthropic")
        assert '"recall"' in last and "Thought" not in last and last.count("Hm.") == 1
