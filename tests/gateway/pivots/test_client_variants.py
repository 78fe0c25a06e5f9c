"""Requests as real agents send them: the substitution is the same every time, and requests are valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.client_sessions import RULE, TASK, Talk, head_of, items_of, scripted
from tests.gateway.client_variants import SHAPES, Claude, Codex, Shaped, unsteady
from tests.gateway.gateway_server import Gate, gateway
from tests.gateway.upstreams import Recorded

each_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., tuple[Recorded, Gate]]]:
    """Return what starts a strict provider and a gateway before it."""
    opened: list[Any] = []

    def start(**options: Any) -> tuple[Recorded, Gate]:
        provider = Recorded(scripted(**{"steps": 24, **options}), window=16_000)
        opened.append(provider)
        provider.__enter__()
        gate = gateway(provider.url, store=f"sqlite:///{tmp_path / 'k.db'}")
        opened.append(gate)
        return provider, gate.__enter__()

    yield start
    for one in reversed(opened):
        one.__exit__(None, None, None)


def clean(provider: Recorded) -> None:
    """Assert that the provider has nothing to complain of."""
    assert [record.refusal for record in provider.refusals] == []
    assert provider.violations == []
    assert provider.overflows == []


def fill(talk: Talk, provider: Recorded, *, over: int = 1) -> None:
    """Go on until the gateway has compacted so often."""
    for _ in range(60):
        if len(talk.compacted) >= over:
            return
        assert talk.step()
    raise AssertionError("the gateway never compacted")


@each_shape
def test_what_is_sent_stays_the_same_however_the_client_writes_it(shape: type[Shaped], served: Any) -> None:
    provider, gate = served(thinking=shape in (Claude, Codex))
    talk = shape(gate.url, lines=60)
    assert talk.run(provider.script.task(TASK)) == 25
    talk.close()
    clean(provider)
    assert 1 <= len(talk.compacted) <= 8
    assert unsteady(provider, talk) == []
    assert {one["x-kompakt-session"] for one in talk.answers} == {talk.session}


@each_shape
def test_the_same_request_again_is_sent_as_before(shape: type[Shaped], served: Any) -> None:
    provider, gate = served()
    talk = shape(gate.url, lines=60)
    talk.say(provider.script.task(TASK))
    fill(talk, provider)
    for _ in range(2):
        talk.step()
    kept, views = list(talk.items), list(talk.sent)
    talk.items = kept[: -_added(talk, kept)]
    talk.sent = views[:-1]  # the same number of the same view
    talk.step()
    talk.close()
    assert provider.asked[-1].body == provider.asked[-2].body
    clean(provider)


def _added(talk: Talk, items: list[Any]) -> int:
    """Count the items that the last step added: the answer and its results."""
    roles = {"anthropic": 2, "gemini": 2}
    if talk.format in roles:
        return roles[talk.format]
    made = max(at for at, item in enumerate(items) if item.get("role") == "tool" or "output" in item)
    start = made
    while start and (items[start].get("role") == "tool" or "output" in items[start]):
        start -= 1
    while talk.format == "openai-responses" and items[start - 1].get("type") in ("reasoning", "function_call"):
        start -= 1
    while talk.format == "openai-responses" and items[start - 1].get("role") == "assistant":
        start -= 1
    return len(items) - start


def test_a_repeated_answer_continues_from_the_same_prefix(served: Any) -> None:
    """The client discards the last answer and asks again: everything before it is sent unchanged."""
    provider, gate = served()
    talk = Claude(gate.url, lines=60)
    talk.say(provider.script.task(TASK))
    fill(talk, provider)
    talk.step()
    before = len(provider.asked)
    talk.items = talk.items[:-2]
    talk.step(), talk.step()
    talk.close()
    clean(provider)
    assert before - 1 not in talk.compacted
    old, new = (items_of(provider.asked[at], "anthropic") for at in (before - 1, before))
    assert len(old) == len(new)


def test_two_branches_of_one_history_share_the_pivot_of_their_prefix(served: Any) -> None:
    provider, gate = served()
    talk = Talk(gate.url, "openai-chat", lines=60)
    talk.say(provider.script.task(TASK))
    fill(talk, provider)
    shared = list(talk.items)
    first = len(provider.asked)
    talk.say("Look at the tests first."), talk.step()
    talk.items = shared
    talk.say("Look at the documents first."), talk.step()
    talk.close()
    clean(provider)
    one, two = (items_of(provider.asked[at], "openai-chat") for at in (first, first + 1))
    assert first not in talk.compacted and first + 1 not in talk.compacted
    assert one[:-1] == two[:-1] and one[-1] != two[-1]


def test_a_message_changed_in_the_middle_is_a_history_of_its_own(served: Any) -> None:
    """An edit with nothing else changed: the request has the edit or its compacted form, and is valid."""
    provider, gate = served()
    talk = Talk(gate.url, "openai-chat", lines=60)
    talk.say(provider.script.task(TASK))
    fill(talk, provider)
    at = next(at for at, item in enumerate(talk.items) if item["role"] == "tool")
    old, new = talk.items[at]["content"], "The file was changed: marker-of-the-edit\n" * 3
    talk.items[at] = {**talk.items[at], "content": new}
    talk.step()
    talk.close()
    clean(provider)
    sent = provider.asked[-1].body.decode()
    assert old.splitlines()[0] not in sent or "marker-of-the-edit" in sent
    assert RULE in sent


def test_a_side_request_leaves_the_session_alone(served: Any) -> None:
    """Titles and topics are asked with other histories, by the same client, in between."""
    provider, gate = served()
    talk, side = Claude(gate.url, lines=60), Talk(gate.url, "anthropic")
    talk.say(provider.script.task(TASK))
    asked: list[int] = []
    while len(talk.compacted) < 2:
        assert talk.step()
        side.items = []
        side.say(provider.script.task(f"{TASK} Write a title.", number=100 + len(talk.sent)))
        side.step()
        asked.append(len(provider.asked) - 1)
    talk.step()
    talk.close(), side.close()
    clean(provider)
    assert not side.compacted
    assert talk.session not in {one["x-kompakt-session"] for one in side.answers}
    own = [raw for at, raw in enumerate(provider.raw) if at not in asked]
    provider.raw[:] = own
    assert unsteady(provider, talk) == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_system_prompt_and_tools_pass_as_they_are(stream: bool, served: Any) -> None:
    """They are no part of what a pivot is known by: a new date changes nothing else. The recall tool comes last."""
    provider, gate = served()
    talk = Claude(gate.url, lines=60, stream=stream)
    talk.say(provider.script.task(TASK))
    fill(talk, provider)
    for _ in range(5):
        talk.step()
    talk.close()
    for at in range(max(0, len(provider.asked) - 5), len(provider.asked)):
        head = head_of(provider.asked[at], "anthropic")
        assert head["system"][1]["text"] == f"<env>\nToday's date: 2026-09-{1 + at // 4:02d}\n</env>"
        assert head["metadata"] == {"user_id": f"user_{at}"}
        assert [tool["name"] for tool in head["tools"]] == ["read_file", "run_tests", "recall"]
    clean(provider)
