"""Undo and preview over HTTP: what the gateway sends afterwards; a preview changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.gateway_server import Gate, gateway
from tests.gateway.payloads import FORMATS, HEADERS, PATHS, answering, history, request
from tests.gateway.upstreams import Upstream, wait_for

from kompakt.session.session import Session
from kompakt.session.store import open_store

each_format = pytest.mark.parametrize("format", FORMATS)


class Stage:
    """Two gateways on one store, with a trigger far below the window."""

    def __init__(self, upstream: Upstream, gates: list[Gate], store: str) -> None:
        self.upstream, self.gates, self.store = upstream, gates, store

    def send(self, format: str, rounds: int, *, by: int = 0) -> tuple[httpx.Response, bytes]:
        """Send a history; return the answer, and what went upstream."""
        body = json.dumps(request(format, history(format, rounds)))
        url = self.gates[by].url + PATHS[format]
        answer = httpx.post(url, content=body, headers=HEADERS[format], timeout=120)
        assert answer.status_code == 200, answer.text
        return answer, self.upstream.raw[-1].body

    def recorded(self, id: str, *, compactions: int) -> None:
        """Wait until a session, its label and this number of compactions are in the store."""

        def is_done() -> bool:
            found = self.ask("GET", f"/kompakt/sessions/{id}").json()
            return found["session"]["title"] != "" and len(found["compactions"]) >= compactions

        wait_for(is_done, "the session is recorded")

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return httpx.request(method, self.gates[0].url + path, timeout=120, **options)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    store = f"sqlite:///{tmp_path / 'k.db'}"
    with Upstream(answering) as upstream, ExitStack() as stack:
        made = [
            stack.enter_context(gateway(upstream.url, store=store, context_window=60_000, trigger=0.3))
            for _ in range(2)
        ]
        yield Stage(upstream, made, store)


class TestUndo:
    @each_format
    def test_the_whole_history_is_sent_again_while_it_fits(self, format: str, stage: Stage) -> None:
        """By every gateway on the store."""
        answer, sent = stage.send(format, 40)
        id, compaction = answer.headers["x-kompakt-session"], answer.headers["x-kompakt-compaction"]
        assert len(json.loads(sent)) and answer.headers["x-kompakt-outcome"] == "compacted"
        undone = stage.ask("POST", f"/kompakt/sessions/{id}/undo")
        assert undone.status_code == 200 and undone.json()["undone"] == compaction
        for by in (0, 1):
            body = json.dumps(request(format, history(format, 41))).encode()
            answer, sent = stage.send(format, 41, by=by)
            assert sent == body and answer.headers["x-kompakt-outcome"] == "fits"
        shown = stage.ask("GET", f"/kompakt/sessions/{id}").json()
        assert [one["undone"] for one in shown["compactions"]] == [True]

    def test_what_no_longer_fits_is_compacted_again(self, stage: Stage) -> None:
        """Undo never makes a request overflow."""
        answer, _ = stage.send("anthropic", 40)
        stage.ask("POST", f"/kompakt/sessions/{answer.headers['x-kompakt-session']}/undo")
        answer, sent = stage.send("anthropic", 120)
        assert int(answer.headers["x-kompakt-tokens-after"]) < 60_000 and len(sent) < 200_000

    def test_the_compaction_before_it_counts_again(self, stage: Stage) -> None:
        """Each undo takes back one, the newest."""
        answer, first = stage.send("openai-chat", 40)
        id = answer.headers["x-kompakt-session"]
        start = json.loads(first)["messages"][:3]
        stage.send("openai-chat", 41)
        answer, second = stage.send("openai-chat", 80)
        assert answer.headers["x-kompakt-outcome"] == "compacted" and json.loads(second)["messages"][:3] != start
        newest = answer.headers["x-kompakt-compaction"]
        assert stage.ask("POST", f"/kompakt/sessions/{id}/undo").json()["undone"] == newest
        for _ in stage.ask("GET", f"/kompakt/sessions/{id}").json()["compactions"][1:-1]:
            assert stage.ask("POST", f"/kompakt/sessions/{id}/undo").status_code == 200
        answer, third = stage.send("openai-chat", 81)
        assert json.loads(third)["messages"][:3] == start and answer.headers["x-kompakt-outcome"] == "substituted"

    def test_an_older_compaction_is_undone_with_all_newer_ones(self, stage: Stage) -> None:
        answer, _ = stage.send("openai-chat", 40)
        path = f"/inspect/api/sessions/{answer.headers['x-kompakt-session']}"
        stage.send("openai-chat", 41)
        stage.send("openai-chat", 80)
        stage.recorded(answer.headers["x-kompakt-session"], compactions=2)
        made = [one["id"] for one in stage.ask("GET", path).json()["compactions"]]
        asked = {"action": "undo", "confirm": True, "compaction": made[0]}
        done = stage.ask("POST", f"{path}/actions", json=asked, headers={"x-kompakt-inspect": "1"}).json()
        assert done["message"] == f"Undone: compaction {made[0]} and {len(made) - 1} newer."
        assert all(one["undone"] for one in stage.ask("GET", path).json()["compactions"])
        body = json.dumps(request("openai-chat", history("openai-chat", 81))).encode()
        assert stage.send("openai-chat", 81, by=1)[1] == body

    def test_without_a_compaction_there_is_nothing_to_undo(self, stage: Stage) -> None:
        answer, _ = stage.send("anthropic", 2)
        found = stage.ask("POST", f"/kompakt/sessions/{answer.headers['x-kompakt-session']}/undo")
        assert (found.status_code, found.json()["error"]["code"]) == (409, "nothing_to_undo")
        assert stage.ask("POST", "/kompakt/sessions/never/undo").status_code == 404


class TestOtherTools:
    """What `kompakt session` and an inspector of the store do in the store of a gateway counts for its requests."""

    def change(self, stage: Stage, id: str, work: Callable[[Session], Awaitable[object]]) -> None:
        async def run() -> None:
            async with await open_store(stage.store) as store:
                await work(await store.session(id))

        asyncio.run(run())

    def test_an_undo_and_a_redo_are_noticed(self, stage: Stage) -> None:
        answer, first = stage.send("anthropic", 40)
        id = answer.headers["x-kompakt-session"]
        stage.recorded(id, compactions=1)
        self.change(stage, id, lambda session: session.undo())
        body = json.dumps(request("anthropic", history("anthropic", 41))).encode()
        for by in (0, 1):
            assert stage.send("anthropic", 41, by=by)[1] == body
        self.change(stage, id, lambda session: session.redo())
        answer, again = stage.send("anthropic", 42)
        assert answer.headers["x-kompakt-outcome"] == "substituted"
        assert json.loads(again)["messages"][:2] == json.loads(first)["messages"][:2]

    def test_an_edited_pivot_is_sent(self, stage: Stage) -> None:
        answer, _ = stage.send("openai-chat", 40)
        id = answer.headers["x-kompakt-session"]
        stage.recorded(id, compactions=1)
        self.change(stage, id, lambda session: session.edit_summary("All parts were read; none is slow."))
        assert b"All parts were read; none is slow." in stage.send("openai-chat", 41)[1]

    def test_a_compaction_adds_no_row_and_is_sent(self, stage: Stage) -> None:
        """The rows of the session are the messages of the client, so what follows is found by their numbers."""
        answer, _ = stage.send("openai-chat", 16)
        id = answer.headers["x-kompakt-session"]
        assert answer.headers["x-kompakt-outcome"] == "fits"
        stage.recorded(id, compactions=0)
        self.change(stage, id, lambda session: session.compact(4_000))
        answer, sent = stage.send("openai-chat", 17)
        assert answer.headers["x-kompakt-outcome"] == "substituted"
        assert len(sent) < len(json.dumps(request("openai-chat", history("openai-chat", 17)))) / 2
        rows = stage.ask("GET", f"/inspect/api/sessions/{id}/messages").json()
        assert rows["total"] == rows["messages"] and rows["notes"] == 0
        (made,) = stage.ask("GET", f"/inspect/api/sessions/{id}").json()["compactions"]
        found = stage.ask("GET", f"/inspect/api/sessions/{id}/compactions/{made['id']}").json()
        assert found["removed_count"] > 0 and found["unrecoverable"] == []


class TestPreview:
    @each_format
    def test_it_reports_the_effect_and_changes_nothing(self, format: str, stage: Stage) -> None:
        answer, _ = stage.send(format, 20)
        id = answer.headers["x-kompakt-session"]
        found = stage.ask("GET", f"/kompakt/sessions/{id}/preview", params={"budget": 6_000}).json()
        assert found["due"] and found["budget"] == 6_000 and found["strategies"] and found["text"]
        assert found["tokens_before"] > 6_000 >= found["tokens_after"]
        assert found["messages_after"] < found["messages_before"] == 41
        shown = stage.ask("GET", f"/kompakt/sessions/{id}").json()
        assert shown["compactions"] == [] and stage.gates[0].metric("kompakt_compactions_total") == 0

    def test_without_a_budget_the_gateway_s_own_counts(self, stage: Stage) -> None:
        answer, _ = stage.send("anthropic", 4)
        found = stage.ask("GET", f"/kompakt/sessions/{answer.headers['x-kompakt-session']}/preview").json()
        assert not found["due"] and found["tokens_after"] == found["tokens_before"] and found["budget"] < 20_000

    @pytest.mark.parametrize(
        ("params", "status"),
        [({"budget": "0"}, 400), ({"budget": "x"}, 400), ({"policy": "none such"}, 400), ({"budget": "5"}, 409)],
    )
    def test_what_cannot_be_meant(self, params: dict[str, str], status: int, stage: Stage) -> None:
        answer, _ = stage.send("anthropic", 4)
        url = f"/kompakt/sessions/{answer.headers['x-kompakt-session']}/preview"
        assert stage.ask("GET", url, params=params).status_code == status


class TestInspector:
    @each_format
    def test_shows_what_the_gateway_compacted_and_undoes_it(self, format: str, stage: Stage) -> None:
        answer, _ = stage.send(format, 40)
        id, compaction = answer.headers["x-kompakt-session"], answer.headers["x-kompakt-compaction"]
        path = f"/inspect/api/sessions/{id}"
        wait_for(lambda: stage.ask("GET", path).json()["row"]["compactions"] == 1, "the compaction is stored")
        detail = stage.ask("GET", path).json()
        assert detail["row"]["window"] == 60_000
        growth = stage.ask("GET", f"{path}/growth").json()
        assert growth["points"][-1]["total"] == detail["row"]["tokens"] and growth["trigger"] < 20_000
        found = stage.ask("GET", f"{path}/compactions/{compaction}").json()
        assert found["tokens_after"] < found["tokens_before"] and found["removed_count"] > 0
        assert found["unrecoverable"] == [] and found["pivot"]
        asked = {"action": "undo", "confirm": True}
        undone = stage.ask("POST", f"{path}/actions", json=asked, headers={"x-kompakt-inspect": "1"})
        assert undone.json()["changed"], undone.text
        answer, sent = stage.send(format, 41)
        assert sent == json.dumps(request(format, history(format, 41))).encode()
