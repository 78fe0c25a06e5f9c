"""The model recalls and the client never hears of it: one answer, one stream, and the same prefix ever after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.gateway.modelling import Model, output_of, prompt_of, read, recall, recalling, said, sound, text_of, words
from tests.gateway.serving import gateway
from tests.gateway.talking import TASK, Talk, needle, result_of
from tests.gateway.upstreams import Recorded
from tests.provider.driving import each_format, each_way
from tests.provider.script import PREFIX

FIRST = "abcdef01_00001_0"


def first_call(format: str) -> str:
    return PREFIX[format] + FIRST


def shown(format: str, *texts: str) -> str:
    """Say what a client sees of the texts of several rounds."""
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
@pytest.mark.parametrize("thinking", [False, True], ids=["plain", "thinking"])
def test_rounds_are_hidden_answered_and_replayed(format: str, stream: bool, thinking: bool, tmp_path: Path) -> None:
    if thinking and format == "openai-chat":
        thinking = False
    model = Model(*plan(format), thinking=thinking)
    with recalling(model, format, tmp_path, stream=stream) as (talk, provider, gate):
        talk.say(TASK)
        assert talk.step() and talk.step()
        assert text_of(talk.last, format) == shown(format, "I had this.", "Found it.") or stream and format == "gemini"
        used = [record.usage for record in provider.requests[1:3]]
        assert prompt_of(talk.last, format) == sum(one.prompt for one in used)
        assert output_of(talk.last, format) == sum(one.output for one in used)
        assert not talk.step()
        for text in ("And now?", "Thanks."):
            talk.say(text)
            assert not talk.step()
        assert len(provider.asked) == 8 and len(talk.answers) == 5
        assert "recall" not in said(talk) and "recall" not in str(talk.last)
        sound(provider, format)
        assert result_of(first_call(format)).splitlines()[4] in words(provider.asked[2], format)
        assert words(provider.asked[-1], format).count('"recall"') >= 3
        assert gate.metric("kompakt_recall_calls_total") == 3


@each_format
@each_way
@pytest.mark.parametrize("first", [True, False], ids=["recall-first", "recall-last"])
def test_a_mixed_turn_forwards_the_clients_calls_and_merges_results(
    format: str, stream: bool, first: bool, tmp_path: Path
) -> None:
    own, hidden = [read("src/b.py"), read("src/c.py")], recall(needle(first_call(format)))
    mixed = [hidden, *own] if first else [*own, hidden]
    model = Model(
        ("Let me look.", [read()]),
        ("Once more.", [recall("marker")]),
        ("All at once.", mixed),
        ("Good.", [read("src/d.py")]),
        ("Done.", []),
        thinking=format == "anthropic",
    )
    with recalling(model, format, tmp_path, stream=stream) as (talk, provider, _):
        assert talk.run(TASK) == 4
        assert len(provider.asked) == 5
        assert "recall" not in said(talk)
        assert len(talk.calls) == 4
        sound(provider, format)
        last = words(provider.asked[-1], format)
        assert last.count('"recall"') >= 2
        assert all(needle(call) in last for call in talk.calls)


@each_format
def test_a_client_that_has_a_tool_of_that_name(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.provider.driving.NAMES", ("read_file", "recall"))
    model = Model(
        ("", [("recall", {"path": "mine"})]), ("", [recall("marker", "kompakt_recall")]), ("Done.", []), ("Bye.", [])
    )
    with recalling(model, format, tmp_path) as (talk, provider, _):
        assert talk.run(TASK) == 2
        assert len(talk.calls) == 1 and len(provider.asked) == 3
        assert "kompakt_recall" not in said(talk)
        assert "the marker here is" in words(provider.asked[2], format)
        sound(provider, format)


@each_format
@each_way
def test_a_model_that_never_stops_recalling(format: str, stream: bool, tmp_path: Path) -> None:
    model = Model(("Again.", [recall("anything")]))
    with recalling(model, format, tmp_path, stream=stream) as (talk, provider, _):
        talk.say(TASK)
        assert not talk.step()
        assert len(provider.asked) == 7
        assert "Go on with what you have" in words(provider.asked[-1], format)
        assert "recall" not in said(talk)
        sound(provider, format)


@each_format
def test_nothing_is_offered_where_it_was_not_from_the_beginning(format: str, tmp_path: Path) -> None:
    model = Model(("Let me look.", [read()]), ("Done.", []))
    with recalling(model, format, tmp_path, recall=False) as (talk, provider, gate):
        talk.say(TASK)
        assert talk.step()
        with gateway(provider.url, store=gate.store, recall=True) as other:
            later = Talk(other.url, format)
            later.items = talk.items
            assert not later.step()
            later.close()
        assert all(b"recall" not in raw.body for raw in provider.asked)


@each_format
def test_nothing_is_offered_without_tools(format: str, tmp_path: Path) -> None:
    with recalling(Model(("Done.", [])), format, tmp_path) as (talk, provider, _):
        talk.tools = False
        talk.say(TASK)
        talk.step()
        assert b"recall" not in provider.asked[0].body


@pytest.mark.parametrize(
    ("format", "extra"),
    [
        ("openai-chat", {"tool_choice": "none"}),
        ("openai-responses", {"tool_choice": "none"}),
        ("anthropic", {"tool_choice": {"type": "none"}}),
        ("gemini", {"tool_config": {"function_calling_config": {"mode": "NONE"}}}),
    ],
)
def test_nothing_is_offered_where_calls_are_forbidden(format: str, extra: dict[str, Any], tmp_path: Path) -> None:
    with recalling(Model(("Done.", [])), format, tmp_path) as (talk, provider, _):
        talk.extra = extra
        talk.say(TASK)
        talk.step()
        assert b"recall" not in provider.asked[0].body


@each_format
def test_replicas_agree_on_rounds(format: str, tmp_path: Path) -> None:
    """Requests that go from one gateway to another are sent as from one."""
    bodies: list[list[bytes]] = []
    for replicas in (1, 2):
        folder = tmp_path / str(replicas)
        folder.mkdir()
        with (
            recalling(Model(*plan(format)), format, folder) as (talk, provider, gate),
            gateway(provider.url, store=gate.store, recall=True) as other,
        ):
            second = Talk(other.url, format)
            talk.say(TASK)
            for step in range(5):
                now = second if replicas == 2 and step % 2 else talk
                now.items = talk.items
                now.step()
                if step in (2, 3):
                    talk.say("And now?")
            second.close()
            sound(provider, format)
            bodies.append([raw.body for raw in provider.asked])
    assert bodies[0] == bodies[1] and len(bodies[0]) == 8


@each_format
def test_a_request_that_is_sent_again_finds_its_rounds(format: str, tmp_path: Path) -> None:
    """The provider fails behind a round: the client is told, and what was recalled is not recalled again."""
    model = Model(("Let me see.", [recall("anything")]), ("Done.", []), ("Bye.", []))
    with recalling(model, format, tmp_path) as (talk, provider, _):
        provider.fault(2, "overloaded")
        talk.say(TASK)
        with pytest.raises(Exception, match=r"(?i)overload|529|503"):
            talk.step()
        assert not talk.step()
        assert len(provider.asked) == 3
        assert provider.asked[1].body == provider.asked[2].body
        assert text_of(talk.last, format) == "Done."
        talk.say("Thanks.")
        talk.step()
        sound(provider, format)


def test_recall_stays_on_the_requests_own_chain(tmp_path: Path) -> None:
    """Neither another tenant nor another branch of the same conversation is found."""
    secret = "zanzibar-4711"
    model = Model(
        (f"It is {secret}.", []),
        ("Fine.", []),
        *[step for _ in range(3) for step in (("", [recall(secret)]), ("Done.", []))],
    )
    with recalling(model, "openai-chat", tmp_path) as (talk, provider, gate):
        talk.say(TASK)
        talk.step()
        talk.say("Go on.")
        talk.step()
        others = [talk.items[:1], [talk.items[0], {"role": "assistant", "content": "No idea."}]]
        for items in others:
            branch = Talk(gate.url, "openai-chat")
            branch.items = [*items, {"role": "user", "content": "What was it?"}]
            branch.step()
            branch.close()
            assert secret not in words(provider.asked[-1], "openai-chat").replace(f'"{secret}', "").replace(
                f'\\"{secret}\\"', ""
            )
        talk.say("What was it?")
        talk.step()
        assert f"It is {secret}." in words(provider.asked[-1], "openai-chat").rpartition("tool_call_id")[2]


def test_a_store_that_fails(tmp_path: Path) -> None:
    """What is remembered goes on; what is not is not offered; nothing fails."""
    pytest.importorskip("starlette")
    from kompakt.errors import StoreUnavailable

    apps: list[Any] = []

    def change(app: Any) -> Any:
        apps.append(app)
        return app

    async def down(*arguments: Any, **named: Any) -> Any:
        raise StoreUnavailable("down")

    model = Model(("Look.", [read()]), ("", [recall("marker")]), ("Done.", []), ("Bye.", []), ("Hello.", []))
    with recalling(model, "openai-chat", tmp_path, change=change) as (talk, provider, gate):
        talk.say(TASK)
        assert talk.step()
        records = apps[0].state.gateway.keeping.records
        for name in ("notes", "note", "rows", "write", "append", "head", "events", "named", "search"):
            if hasattr(records, name):
                setattr(records, name, down)
        assert not talk.step()
        assert text_of(talk.last, "openai-chat") == "Done."
        assert "cannot be reached" in words(provider.asked[-1], "openai-chat")
        talk.say("Thanks.")
        talk.step()
        sound(provider, "openai-chat")
        new = Talk(gate.url, "openai-chat")
        new.say("Something else.")
        new.step()
        new.close()
        assert b"recall" not in provider.asked[-1].body
