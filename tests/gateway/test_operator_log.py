"""What an operator reads: log lines of compactions, of unknown models and of the store."""

from __future__ import annotations

import asyncio
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.gateway_server import Gate, gateway
from tests.gateway.payloads import FORMATS, HEADERS, PATHS, answering, history, request
from tests.gateway.storage.test_write_behind import chain_of
from tests.gateway.upstreams import Upstream

from kompakt.errors import StoreDamaged, StoreUnavailable
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.storage import storage
from kompakt.gateway.storage.storage import GatewayStorage
from kompakt.gateway.tenants import Owner
from kompakt.session.store import open_store


def post(gate: Gate, format: str, rounds: int, **more: Any) -> httpx.Response:
    body = json.dumps(request(format, history(format, rounds, size=60), **more))
    return httpx.post(gate.url + PATHS[format], content=body, headers=HEADERS[format], timeout=120)


class TestCompactionLines:
    @pytest.mark.parametrize("format", FORMATS)
    def test_they_name_session_strategies_time_and_tokens(
        self, format: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "kompakt")
        with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
            answer = post(gate, format, 40)
        (line,) = [one for one in caplog.records if one.name == "kompakt.compaction"]
        facts: dict[str, Any] = vars(line)["kompakt"]
        assert facts["session"] == answer.headers["x-kompakt-session"]
        assert facts["strategies"] and facts["seconds"] > 0
        assert int(answer.headers["x-kompakt-tokens-before"]) >= facts["tokens_before"] > facts["tokens_after"] > 0


class TestUnknownModels:
    def test_the_log_names_the_flag_once(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, "kompakt.gateway")
        store = f"sqlite:///{tmp_path / 'k.db'}"
        with (
            warnings.catch_warnings(record=True) as caught,
            Upstream(answering) as upstream,
            gateway(upstream.url, store=store, context_window=None) as gate,
        ):
            warnings.simplefilter("always")
            for rounds in (2, 3):
                assert post(gate, "openai-chat", rounds, model="unknown-model").status_code == 200
            assert post(gate, "openai-chat", 2, model="gpt-5").status_code == 200
        said = [one.getMessage() for one in caplog.records if "is unknown" in one.getMessage()]
        assert len(said) == 1
        assert "'unknown-model'" in said[0] and "32000 tokens" in said[0]
        assert "--context-window N" in said[0] and "--window MODEL=N" in said[0]
        assert [one for one in caught if "context window" in str(one.message)] == []

    @pytest.mark.parametrize("stated", [{"context_window": 16_000}, {"windows": {"unknown-model": 16_000}}])
    def test_a_window_that_is_stated_needs_no_line(
        self, stated: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING, "kompakt.gateway")
        settings: dict[str, Any] = {"context_window": None, **stated}
        with (
            Upstream(answering) as upstream,
            gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}", **settings) as gate,
        ):
            assert post(gate, "openai-chat", 2, model="unknown-model").status_code == 200
        assert [one for one in caplog.records if "is unknown" in one.getMessage()] == []


class TestStoreLines:
    def test_an_outage_has_a_start_and_an_end(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Calls during the outage fail at once; the first one that succeeds after it is logged, later ones are not."""
        caplog.set_level(logging.INFO, "kompakt.gateway")
        monkeypatch.setattr(storage, "_RETRY_AFTER", 0.0)

        async def outage() -> None:
            async with await open_store("memory:") as store:
                tested, owner, read = GatewayStorage(store, Metrics()), Owner("", ""), store.records.notes

                async def down(*_: object) -> dict[str, bytes]:
                    raise StoreUnavailable("memory is full")

                monkeypatch.setattr(store.records, "notes", down)
                try:
                    await tested.read_notes(owner, ["a"])
                except StoreUnavailable as error:
                    tested.store_failed(error)
                monkeypatch.setattr(store.records, "notes", read)
                for _ in range(3):
                    await tested.read_notes(owner, ["a"])

        asyncio.run(outage())
        lines = [one.getMessage() for one in caplog.records]
        assert lines == ["store unavailable: memory is full", "store available again"]

    def test_a_deleted_session_is_recorded_again_as_the_line_says(self, caplog: pytest.LogCaptureFixture) -> None:
        """By the request that notices the loss, which is not the next one."""
        caplog.set_level(logging.INFO, "kompakt.gateway")

        async def delete() -> bool:
            async with await open_store("memory:") as store:
                tested, owner = GatewayStorage(store, Metrics()), Owner("", "")
                first, second = chain_of("a"), chain_of("a", "b")
                recorded = await tested.record(owner, first, (await tested.match(owner, first, named=None)).branch)
                await store.delete(recorded.session)
                tested.record_later(owner, second, (await tested.match(owner, second, named=None)).branch)
                await tested.flush()
                return await (await store.session(recorded.session)).exists()

        assert asyncio.run(delete())
        (line,) = [one.getMessage() for one in caplog.records]
        assert line.endswith(
            "deleted from the store; what is missing is recorded again when its conversation continues"
        )

    def test_a_damaged_note_is_not_an_outage(self, caplog: pytest.LogCaptureFixture) -> None:
        async def damaged() -> None:
            async with await open_store("memory:") as store:
                GatewayStorage(store, Metrics()).store_failed(StoreDamaged("note x: damaged"))

        asyncio.run(damaged())
        assert [one.getMessage() for one in caplog.records] == ["store call failed: note x: damaged"]
