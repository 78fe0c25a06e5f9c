"""Actions of the inspector on live conversations: every gateway on the store notices them with its next request."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.contract.backends import Place
from tests.gateway.admin.test_undo import Stage, each_format, stage
from tests.gateway.gateway_server import gateway
from tests.gateway.payloads import FILLER, answering, history, request
from tests.gateway.upstreams import Upstream, wait_for

from kompakt.gateway.storage.changes import ChangedSessions

__all__ = ["stage"]

EDITED = "The queue stalls because of the index lock.\nNever touch the migrations folder."
PINNED = FILLER + "marker00003"
"""A text in the middle of the history that no compaction keeps by itself."""


def act(stage: Stage, id: str, action: str, **fields: Any) -> dict[str, Any]:
    """Ask for an action; it has to succeed."""
    asked = {"action": action, "confirm": True, **fields}
    found = stage.ask("POST", f"/inspect/api/sessions/{id}/actions", json=asked, headers={"x-kompakt-inspect": "1"})
    assert found.status_code == 200, found.text
    return found.json()


def whole(format: str, rounds: int) -> bytes:
    """Return a request as the client sends it."""
    return json.dumps(request(format, history(format, rounds))).encode()


def by_both(stage: Stage, format: str, rounds: int) -> bytes:
    """Send a request through both gateways; both have to send the same bytes."""
    (_, one), (_, other) = (stage.send(format, rounds, by=by) for by in (0, 1))
    assert one == other
    return one


class TestCompactNow:
    @each_format
    def test_the_next_request_is_sent_as_the_preview_shows(self, format: str, stage: Stage) -> None:
        answer, _ = stage.send(format, 20)
        id = answer.headers["x-kompakt-session"]
        path = f"/inspect/api/sessions/{id}"
        preview = stage.ask(
            "POST", f"{path}/preview", json={"budget": 6_000}, headers={"x-kompakt-inspect": "1"}
        ).json()
        done = act(stage, id, "compact", budget=6_000)
        assert done["changed"] and done["tokens_after"] == preview["tokens_after"] <= 6_000
        short = by_both(stage, format, 21)
        assert len(short) < len(whole(format, 21)) / 2
        line = next(one for one in preview["pivot"].splitlines() if "marker" in one or "part_" in one)
        assert json.dumps(line)[1:-1].encode() in short or line.encode() in short
        assert b"marker00020" in short and b"marker00003" not in short
        # Requests that follow extend it, and the session has the messages of the client and nothing else.
        assert by_both(stage, format, 22).startswith(short[: len(short) // 2])
        detail = stage.ask("GET", path).json()
        wait_for(lambda: stage.ask("GET", path).json()["messages"] == len(history(format, 22)), "all is recorded")
        assert [one["auto"] for one in detail["compactions"]] == [False]
        assert stage.ask("GET", f"{path}/compactions/{done['compaction']}").json()["unrecoverable"] == []

    @each_format
    def test_undo_and_redo(self, format: str, stage: Stage) -> None:
        answer, _ = stage.send(format, 20)
        id = answer.headers["x-kompakt-session"]
        act(stage, id, "compact", budget=6_000)
        short = by_both(stage, format, 21)
        act(stage, id, "undo")
        assert by_both(stage, format, 21) == whole(format, 21)
        act(stage, id, "redo")
        assert by_both(stage, format, 21) == short
        act(stage, id, "undo")
        assert by_both(stage, format, 21) == whole(format, 21)

    def test_what_fits_is_not_compacted(self, stage: Stage) -> None:
        answer, _ = stage.send("anthropic", 4)
        done = act(stage, answer.headers["x-kompakt-session"], "compact", budget=50_000)
        assert not done["changed"] and by_both(stage, "anthropic", 5) == whole("anthropic", 5)

    def test_a_budget_that_cannot_be_met_changes_nothing(self, stage: Stage) -> None:
        answer, _ = stage.send("anthropic", 4)
        id = answer.headers["x-kompakt-session"]
        asked = {"action": "compact", "confirm": True, "budget": 10}
        found = stage.ask("POST", f"/inspect/api/sessions/{id}/actions", json=asked, headers={"x-kompakt-inspect": "1"})
        assert (found.status_code, found.json()["error"]["code"]) == (409, "does_not_fit")
        assert by_both(stage, "anthropic", 5) == whole("anthropic", 5)


class TestEdit:
    @each_format
    def test_the_model_reads_the_new_text_until_it_is_undone(self, format: str, stage: Stage) -> None:
        answer, _ = stage.send(format, 40)
        id, compaction = answer.headers["x-kompakt-session"], answer.headers["x-kompakt-compaction"]
        before = by_both(stage, format, 41)
        act(stage, id, "edit", text=EDITED, compaction=compaction)
        after = by_both(stage, format, 41)
        assert json.dumps(EDITED)[1:-1].encode() in after and len(after) < len(before)
        assert by_both(stage, format, 42).count(b"index lock") == 1
        act(stage, id, "undo")
        assert by_both(stage, format, 41) == before
        act(stage, id, "redo")
        assert by_both(stage, format, 41) == after

    def test_the_next_compaction_continues_from_it(self, stage: Stage) -> None:
        answer, _ = stage.send("anthropic", 40)
        act(stage, answer.headers["x-kompakt-session"], "edit", text=EDITED)
        sent = [by_both(stage, "anthropic", rounds) for rounds in range(41, 80)]
        assert all(len(one) < 150_000 for one in sent)
        id = answer.headers["x-kompakt-session"]
        live = stage.ask("GET", f"/kompakt/sessions/{id}").json()["compactions"]
        assert len(live) >= 2 and len({one["id"] for one in live}) == len(live)
        assert stage.gates[0].metric("kompakt_compactions_total") + stage.gates[1].metric(
            "kompakt_compactions_total"
        ) == len(live)


class TestPins:
    @each_format
    def test_a_pinned_text_is_in_every_request_after_the_next_compaction(self, format: str, stage: Stage) -> None:
        answer, _ = stage.send(format, 10)
        id = answer.headers["x-kompakt-session"]
        assert act(stage, id, "pin", text=PINNED)["changed"]
        assert by_both(stage, format, 11) == whole(format, 11)
        quoted = json.dumps(PINNED)[1:-1].encode()
        for rounds in (40, 41, 80):
            sent = by_both(stage, format, rounds)
            assert len(sent) < len(whole(format, rounds)) and quoted in sent
        assert act(stage, id, "unpin", text=PINNED)["changed"]
        assert quoted not in by_both(stage, format, 120)


class TestTogether:
    def test_actions_while_a_client_works(self, stage: Stage) -> None:
        """Every request is answered and fits; at the end both gateways agree with the timeline."""
        answer, _ = stage.send("openai-chat", 40)
        id = answer.headers["x-kompakt-session"]

        fields = {"edit": {"text": EDITED}, "pin": {"text": PINNED}, "compact": {"budget": 8_000}}

        def send(rounds: int, by: int) -> None:
            answer, _ = stage.send("openai-chat", rounds, by=by)
            assert int(answer.headers["x-kompakt-tokens-after"]) < 60_000

        def change(action: str) -> int:
            asked = {"action": action, "confirm": True, **fields.get(action, {})}
            path = f"/inspect/api/sessions/{id}/actions"
            return stage.ask("POST", path, json=asked, headers={"x-kompakt-inspect": "1"}).status_code

        actions = ("undo", "redo", "edit", "undo", "pin", "compact", "undo", "redo", "edit", "undo", "compact")
        with ThreadPoolExecutor(3) as pool:
            for rounds, action in enumerate(actions, 41):
                work = [pool.submit(send, rounds, by) for by in (0, 1)]
                assert pool.submit(change, action).result() in (200, 400)  # a compaction leaves nothing to redo
                for one in work:
                    one.result()
        by_both(stage, "openai-chat", 61)
        assert stage.ask("GET", f"/inspect/api/sessions/{id}").json()["row"]["compactions"] >= 1

    def test_a_deleted_session_is_recorded_again_without_the_changes(self, stage: Stage) -> None:
        answer, _ = stage.send("anthropic", 20)
        id = answer.headers["x-kompakt-session"]
        act(stage, id, "pin", text=PINNED)
        act(stage, id, "compact", budget=6_000)
        assert by_both(stage, "anthropic", 21) != whole("anthropic", 21)
        assert act(stage, id, "delete")["changed"]
        assert by_both(stage, "anthropic", 21) == whole("anthropic", 21)
        grown = iter(range(22, 30))  # what was pending when it was deleted stays deleted; a later request records it

        def is_recorded() -> bool:
            stage.send("anthropic", next(grown))
            return stage.ask("GET", f"/inspect/api/sessions/{id}").status_code == 200

        wait_for(is_recorded, "it is recorded again")
        assert stage.ask("GET", f"/inspect/api/sessions/{id}").json()["pins"] == []

    def test_a_session_deleted_while_it_is_compacted_is_no_failure_of_the_store(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answer, _ = stage.send("anthropic", 10)
        id = answer.headers["x-kompakt-session"]
        act(stage, id, "pin", text=PINNED)
        record, deleted = ChangedSessions.record, list[str]()

        async def delete_first(changed: ChangedSessions, owner: Any, branch: Any, *rest: Any) -> None:
            deleted.append(branch.session)
            await changed._storage.store_of(owner).delete(branch.session)
            await record(changed, owner, branch, *rest)

        monkeypatch.setattr(ChangedSessions, "record", delete_first)
        answer, sent = stage.send("anthropic", 40)
        assert deleted == [id] and len(sent) < len(whole("anthropic", 40))
        assert json.dumps(PINNED)[1:-1].encode() not in sent  # the pin was deleted with the session
        assert answer.headers["x-kompakt-outcome"] == "compacted" and "x-kompakt-degraded" not in answer.headers
        assert stage.gates[0].metric("kompakt_store_failures_total") == 0
        assert by_both(stage, "anthropic", 41).startswith(sent[: len(sent) // 2])
        stage.recorded(id, compactions=1)
        assert stage.ask("GET", f"/kompakt/sessions/{id}").json()["session"]["messages"] >= len(
            history("anthropic", 40)
        )


@pytest.mark.parametrize("action", ["undo", "redo", "edit"])
def test_what_is_not_possible_changes_nothing(action: str, stage: Stage) -> None:
    answer, _ = stage.send("anthropic", 4)
    asked = {"action": action, "confirm": True, "text": "x"}
    path = f"/inspect/api/sessions/{answer.headers['x-kompakt-session']}/actions"
    found = stage.ask("POST", path, json=asked, headers={"x-kompakt-inspect": "1"})
    assert found.status_code == 400 and found.json()["error"]["message"]
    assert by_both(stage, "anthropic", 5) == whole("anthropic", 5)


@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_all_actions_on_a_shared_store(name: str, tmp_path: Path) -> None:
    with Upstream(answering) as upstream, ExitStack() as stack:
        url = Place(name, tmp_path).url
        made = [stack.enter_context(gateway(upstream.url, store=url, context_window=60_000)) for _ in range(2)]
        stage = Stage(upstream, made, url)
        answer, _ = stage.send("anthropic", 20)
        id = answer.headers["x-kompakt-session"]
        act(stage, id, "pin", text=PINNED)
        act(stage, id, "compact", budget=6_000)
        short = by_both(stage, "anthropic", 21)
        quoted = json.dumps(PINNED)[1:-1].encode()
        assert len(short) < len(whole("anthropic", 21)) and quoted in short
        act(stage, id, "edit", text=EDITED)
        assert b"index lock" in by_both(stage, "anthropic", 22)
        act(stage, id, "undo")
        assert by_both(stage, "anthropic", 21) == short
        act(stage, id, "undo")
        assert by_both(stage, "anthropic", 22) == whole("anthropic", 22)
        act(stage, id, "redo")
        assert by_both(stage, "anthropic", 21) == short
        assert act(stage, id, "delete")["changed"]
        assert by_both(stage, "anthropic", 22) == whole("anthropic", 22)
