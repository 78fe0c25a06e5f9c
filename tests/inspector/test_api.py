"""The HTTP API of the inspector: values, errors, actions, events, and who is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import jsonschema
import msgspec
import pytest
from tests.contract.backends import Place
from tests.view.sessions import body, claude_code, compacted, filled

from kompakt.inspector.access import TokenAccess
from kompakt.inspector.server import create_app
from kompakt.session.store import open_store
from kompakt.view.inspection import Inspection, open_inspection

T = TypeVar("T")

BASE = "http://127.0.0.1:4000"
TOKEN = "a-secret-token"
ACCESS = TokenAccess(TOKEN, 4000)
POST = {"x-kompakt-inspect": "1"}


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


SERVERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("postgres", "redis")]


@pytest.fixture(scope="module", params=["sqlite", *SERVERS])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store that tests only read."""
    return run(filled(Place(request.param, tmp_path_factory.mktemp("store")).url))


@pytest.fixture(params=["sqlite", *SERVERS])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of its own for a test that writes."""
    return Place(request.param, tmp_path).url


@asynccontextmanager
async def client(
    target: str | Path, *, write: bool = False, token: str | None = TOKEN
) -> AsyncGenerator[tuple[httpx.AsyncClient, Inspection]]:
    async with await open_inspection(target, write=write) as inspection:
        transport = httpx.ASGITransport(app=create_app(inspection, ACCESS))  # type: ignore[arg-type]
        cookies = {ACCESS.cookie: token} if token else {}
        async with httpx.AsyncClient(transport=transport, base_url=BASE, cookies=cookies) as made:
            yield made, inspection


class TestValues:
    def test_every_address_returns_the_values_of_the_inspection(self, store: str) -> None:
        async def work() -> None:
            async with client(store) as (http, inspection):
                one = (await inspection.session("work")).compactions[0].id
                expected = {
                    "sessions/work": inspection.session("work"),
                    "sessions/work/growth": inspection.growth("work"),
                    "sessions/work/context": inspection.context("work"),
                    "sessions/work/messages?start=10&limit=5": inspection.messages("work", 10, 5),
                    "sessions/work/messages?kind=user": inspection.messages("work", kind="user"),
                    "sessions/work/messages/4": inspection.message("work", 4),
                    "sessions/work/steps/7": inspection.step("work", 7),
                    f"sessions/work/compactions/{one}": inspection.compaction("work", one),
                    "sessions/work/recall?query=E007": inspection.recall("work", "E007"),
                }
                for path, value in expected.items():
                    found = await http.get(f"/inspect/api/{path}")
                    assert found.status_code == 200, found.text
                    assert found.json() == json.loads(msgspec.json.encode(await value)), path

        run(work())

    def test_answers_have_the_described_shape(self, store: str) -> None:
        async def work() -> None:
            async with client(store) as (http, inspection):
                document = (await http.get("/inspect/api/openapi.json")).json()
                assert "/inspect/api/login" not in document["paths"]  # only a gateway has it
                one = (await inspection.session("work")).compactions[0].id
                names = {"{id}": "work", "{seq}": "4", "{step}": "7", "{compaction}": one}
                checked = 0
                for path, operations in document["paths"].items():
                    if "get" not in operations or path.endswith(("events", "openapi.json")):
                        continue
                    for name, value in names.items():
                        path = path.replace(name, value)
                    found = await http.get(path, params={"query": "parser"})
                    schema = operations["get"]["responses"]["200"]["content"]["application/json"]["schema"]
                    jsonschema.validate(found.json(), {**schema, "components": document["components"]})
                    checked += 1
                assert checked == 9
                path = document["paths"]["/inspect/api/sessions/{id}/preview"]["post"]
                found = await http.post("/inspect/api/sessions/work/preview", json={"budget": 2_000}, headers=POST)
                schema = path["responses"]["200"]["content"]["application/json"]["schema"]
                jsonschema.validate(found.json(), {**schema, "components": document["components"]})

        run(work())

    def test_actions_have_the_described_shape(self, empty: str) -> None:
        async def work() -> None:
            async with await open_store(empty) as opened:
                await compacted(opened)
            async with client(empty, write=True) as (http, _):
                document = (await http.get("/inspect/api/openapi.json")).json()
                path = document["paths"]["/inspect/api/sessions/{id}/actions"]["post"]
                schema = path["responses"]["200"]["content"]["application/json"]["schema"]
                asked = path["requestBody"]["content"]["application/json"]["schema"]
                for action in ("pin", "unpin", "undo", "redo", "edit", "compact", "delete"):
                    data = {"action": action, "confirm": True, "text": "parser", "budget": 2_000}
                    jsonschema.validate(data, {**asked, "components": document["components"]})
                    found = await http.post("/inspect/api/sessions/work/actions", json=data, headers=POST)
                    assert found.status_code == 200, found.text
                    jsonschema.validate(found.json(), {**schema, "components": document["components"]})

        run(work())

    def test_a_session_id_may_have_any_characters(self, empty: str) -> None:
        async def work() -> None:
            ids = ["a/b", "../x", "growth", "a b?c#d", "é%2F", "\u202e<script>alert(1)</script>", "a'\"b", "\x00"]
            async with await open_store(empty) as opened:
                for id in ids:
                    await (await opened.session(id)).save(body(1))
            async with client(empty) as (http, _):
                for id in ids:
                    found = await http.get(f"/inspect/api/sessions/{quote(id, safe='')}/messages")
                    assert found.status_code == 200, (id, found.text)
                    shown = await http.get(f"/inspect/api/sessions/{quote(id, safe='')}")
                    assert shown.json()["row"]["id"] == id
                assert {row["id"] for row in (await http.get("/inspect/api/sessions")).json()["rows"]} == set(ids)

        run(work())

    def test_the_page_names_its_files_with_a_hash(self, store: str) -> None:
        async def work() -> None:
            async with client(store) as (http, _):
                assert (await http.get("/inspect")).headers["location"] == "/inspect/"
                page = await http.get("/inspect/")
                assert page.headers["content-type"].startswith("text/html")
                name = page.text.partition('src="')[2].partition('"')[0]
                script = await http.get(f"/inspect/{name}")
                assert "immutable" in script.headers["cache-control"]
                assert script.headers["content-type"].startswith("text/javascript")
                plain = await http.get("/inspect/static/app.js")
                assert plain.content == script.content and plain.headers["cache-control"] == "no-cache"
                for bad in ("static/../api.py", "static/%2e%2e/api.py", "static/..%2fapi.py", "static/", "x"):
                    assert (await http.get(f"/inspect/{bad}")).status_code == 404

        run(work())


class TestErrors:
    @pytest.mark.parametrize(
        ("path", "status", "code"),
        [
            ("sessions/missing", 404, "not_found"),
            ("sessions/", 404, "not_found"),
            ("sessions/work/unknown", 404, "not_found"),
            ("unknown", 404, "not_found"),
            ("sessions/work/compactions/none", 404, "not_found"),
            ("sessions/work/messages/99999", 404, "not_found"),
            ("sessions/work/steps/0", 404, "not_found"),
            ("sessions/work/messages/-1", 400, "invalid_request"),
            ("sessions/work/messages?start=x", 400, "invalid_request"),
            ("sessions/work/messages?limit=99999999999999999999", 400, "invalid_request"),
            ("sessions/work/messages?kind=x", 400, "invalid_request"),
            ("sessions/work/recall", 400, "invalid_request"),
            ("sessions?cursor=x", 400, "invalid_request"),
        ],
    )
    def test_say_what_is_wrong(self, store: str, path: str, status: int, code: str) -> None:
        async def work() -> None:
            async with client(store) as (http, _):
                found = await http.get(f"/inspect/api/{path}")
            assert (found.status_code, found.json()["error"]["code"]) == (status, code)
            assert found.json()["error"]["message"]

        run(work())

    def test_bad_bodies_are_refused(self, store: str) -> None:
        async def work() -> None:
            async with client(store) as (http, _):
                path = "/inspect/api/sessions/work/preview"
                for data in (b"", b"x", b"[]", b'{"budget": "many"}', b'{"budget": 0}', b'{"other": 1}', b"\xff"):
                    found = await http.post(path, content=data, headers={**POST, "content-type": "application/json"})
                    assert found.status_code == 400, data
                assert (await http.post(path, json={}, headers=POST)).status_code == 200
                assert (await http.post(path, content="{}", headers=POST)).status_code == 415
                assert (await http.post(path, json={"policy": "nope"}, headers=POST)).status_code == 400
                large = {"policy": "x" * 3_000_000}
                assert (await http.post(path, json=large, headers=POST)).status_code == 413
                assert (await http.put(path, json={}, headers=POST)).status_code == 405
                assert (await http.get(path)).status_code == 405

        run(work())


class TestAccess:
    ADDRESSES = ("", "static/app.js", "api/sessions", "api/sessions/work", "api/openapi.json", "api/events")

    def test_without_the_token_nothing_is_readable(self, store: str) -> None:
        async def work() -> None:
            for token in (None, "wrong", TOKEN[:-1], "", "é"):
                async with client(store, token=None) as (http, _):
                    headers = [] if token is None else [(b"cookie", f"{ACCESS.cookie}={token}".encode())]
                    for path in self.ADDRESSES:
                        found = await http.get(f"/inspect/{path}", headers=headers)
                        assert (found.status_code, found.json()["error"]["code"]) == (403, "no_token")
                    found = await http.get("/inspect/", params={"token": "wrong"}, headers=headers)
                    assert found.status_code == 403 and "set-cookie" not in found.headers
                    found = await http.get("/inspect/api/sessions", params={"token": TOKEN}, headers=headers)
                    assert found.status_code == 403  # only the page exchanges the token

        run(work())

    def test_the_page_exchanges_the_token_for_a_cookie(self, store: str) -> None:
        async def work() -> None:
            async with client(store, token=None) as (http, _):
                found = await http.get("/inspect/", params={"token": TOKEN, "view": "list"})
                assert found.status_code == 303 and found.headers["location"] == "/inspect/?view=list"
                cookie = found.headers["set-cookie"]
                assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/inspect" in cookie
                assert (await http.get("/inspect/api/sessions")).status_code == 200

        run(work())

    @pytest.mark.parametrize("host", ["evil.example", "evil.example:4000", "127.0.0.1.evil.example", "", "0.0.0.0"])
    def test_another_host_name_is_refused(self, store: str, host: str) -> None:
        """DNS rebinding: a page of evil.example whose name now resolves to this machine."""

        async def work() -> None:
            async with client(store) as (http, _):
                for path in self.ADDRESSES:
                    found = await http.get(f"/inspect/{path}", headers={"host": host})
                    assert (found.status_code, found.json()["error"]["code"]) == (403, "host_not_allowed")
                found = await http.get("/inspect/", params={"token": TOKEN}, headers={"host": host})
                assert found.status_code == 403

        run(work())

    @pytest.mark.parametrize(
        "headers",
        [
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": "http://127.0.0.1:4001"},
            {"origin": "http://localhost:4000"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ],
    )
    def test_another_origin_is_refused(self, store: str, headers: dict[str, str]) -> None:
        async def work() -> None:
            async with client(store, write=True) as (http, inspection):
                before = await inspection.version("work")
                for path in self.ADDRESSES:
                    found = await http.get(f"/inspect/{path}", headers=headers)
                    assert (found.status_code, found.json()["error"]["code"]) == (403, "origin_not_allowed")
                asked = {"action": "undo", "confirm": True}
                found = await http.post("/inspect/api/sessions/work/actions", json=asked, headers={**POST, **headers})
                assert found.status_code == 403
                assert await inspection.version("work") == before

        run(work())

    def test_a_post_needs_the_header(self, store: str) -> None:
        async def work() -> None:
            async with client(store, write=True) as (http, inspection):
                before = await inspection.version("work")
                for path in ("preview", "actions"):
                    found = await http.post(f"/inspect/api/sessions/work/{path}", json={"action": "undo"})
                    assert (found.status_code, found.json()["error"]["code"]) == (403, "header_missing")
                assert await inspection.version("work") == before

        run(work())

    def test_every_answer_has_the_headers_that_keep_content_inert(self, store: str) -> None:
        async def work() -> None:
            async with client(store) as (http, _):
                for path in ("", "static/app.js", "api/sessions", "api/unknown"):
                    headers = (await http.get(f"/inspect/{path}")).headers
                    policy = headers["content-security-policy"]
                    assert "default-src 'none'" in policy and "unsafe" not in policy
                    assert headers["x-content-type-options"] == "nosniff"
                    assert headers["referrer-policy"] == "no-referrer"

        run(work())


class TestActions:
    async def _act(self, http: httpx.AsyncClient, **asked: Any) -> httpx.Response:
        return await http.post("/inspect/api/sessions/work/actions", json={"confirm": True, **asked}, headers=POST)

    def test_are_refused_without_write(self, store: str) -> None:
        async def work() -> None:
            async with client(store) as (http, inspection):
                before = await inspection.version("work")
                for action in ("pin", "unpin", "undo", "redo", "compact", "edit", "delete"):
                    found = await self._act(http, action=action, text="x")
                    assert found.status_code == 400 and "--write" in found.json()["error"]["message"]
                assert await inspection.version("work") == before

        run(work())

    def test_are_refused_for_a_file(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with client(claude_code(tmp_path / "work.jsonl"), write=True) as (http, _):
                found = await self._act(http, action="undo")
                assert found.status_code == 400 and "session import" in found.json()["error"]["message"]

        run(work())

    def test_need_a_confirmation(self, empty: str) -> None:
        async def work() -> None:
            async with client(await filled(empty), write=True) as (http, inspection):
                before = await inspection.version("work")
                found = await self._act(http, action="delete", confirm=False)
                assert found.status_code == 400 and "confirm" in found.json()["error"]["message"]
                assert await inspection.version("work") == before

        run(work())

    def test_change_the_session_and_report_what_they_did(self, empty: str) -> None:
        async def work() -> None:
            async with client(await filled(empty), write=True) as (http, inspection):
                full = (await inspection.session("work")).row.tokens or 0

                pinned = (await self._act(http, action="pin", seq=2)).json()
                assert pinned["changed"] and (await inspection.session("work")).pins
                assert (await inspection.messages("work")).rows[1].pinned
                assert (await self._act(http, action="unpin", seq=2)).json()["changed"]
                assert (await inspection.session("work")).pins == ()
                assert (await self._act(http, action="unpin", text="never pinned")).status_code == 400

                undone = (await self._act(http, action="undo")).json()
                assert undone["changed"] and "compaction" in undone["message"]
                detail = await inspection.session("work")
                assert (detail.row.tokens or 0) > full and detail.row.compactions == 1 and detail.can_redo
                assert (await self._act(http, action="redo")).json()["changed"]
                detail = await inspection.session("work")
                assert detail.row.tokens == full and detail.row.compactions == 2 and not detail.can_redo
                assert (await self._act(http, action="redo")).status_code == 400

                newest = detail.compactions[-1].id
                await self._act(http, action="edit", text="The parser is done.")
                found = await inspection.compaction("work", newest)
                assert [line.text for line in found.pivot] == ["The parser is done."]

                plan = await inspection.preview("work", 2_500)
                done = (await self._act(http, action="compact", budget=2_500)).json()
                assert done["changed"] and done["tokens_after"] == plan.tokens_after
                assert (await inspection.session("work")).row.tokens == plan.tokens_after + RESUME_TOKENS
                again = (await self._act(http, action="compact", budget=2_500)).json()
                assert not again["changed"] and "fit" in again["message"]

                assert (await self._act(http, action="delete")).json()["changed"]
                assert (await http.get("/inspect/api/sessions/work")).status_code == 404

        run(work())


RESUME_TOKENS = 24
"""The message that asks the agent to continue after a compaction."""


class TestEvents:
    def test_tell_which_session_changed(self, empty: str) -> None:
        async def work() -> None:
            url = await filled(empty)
            async with await open_inspection(url) as inspection, await open_store(url) as opened:
                changes = inspection.changes("work", pause=0.01)
                assert await anext(changes) == []
                session = await opened.session("work")
                await session.append([{"role": "user", "content": "one more"}])
                while not (changed := await anext(changes)):
                    pass
                assert changed == [("work", (await session.head()).rows)]
                everything = inspection.changes(pause=0.01)
                assert await anext(everything) == []
                await compacted(opened, "third")
                while not (changed := await anext(everything)):
                    pass
                assert [id for id, _ in changed] == ["third"]

        run(work())


class TestHostileRequests:
    """Whatever is asked, the answer is JSON with a reason, and nothing changes."""

    NUMBERS = ("-1", "NaN", "Infinity", "1e9", "0x10", "٣", "１", " 1", "1_0", "", "9" * 40, "%00", "1;2", "-0")

    @pytest.mark.parametrize("number", NUMBERS)
    def test_numbers_that_are_none(self, store: str, number: str) -> None:
        async def work() -> None:
            async with client(store) as (http, _):
                for path in ("messages?start=", "messages?limit=", "messages/2?offset=", "messages/", "steps/"):
                    found = await http.get(f"/inspect/api/sessions/work/{path}{quote(number, safe='%')}")
                    assert found.status_code in (400, 404), path
                    assert found.json()["error"]["message"]
                found = await http.get(f"/inspect/api/sessions?limit={quote(number, safe='%')}")
                assert found.status_code == 400

        run(work())

    def test_numbers_that_are_too_large(self, store: str) -> None:
        async def work() -> None:
            async with client(store) as (http, _):
                most = "9" * 12
                for path in (f"messages?start={most}", f"messages?limit={most}", f"messages/2?offset={most}"):
                    assert (await http.get(f"/inspect/api/sessions/work/{path}")).status_code == 200
                for path in (f"messages/{most}", f"steps/{most}"):
                    assert (await http.get(f"/inspect/api/sessions/work/{path}")).status_code == 404
                for cursor in ("nan x", "inf x", "-inf x", "1e999 x", "0 ", "0 \x00"):
                    found = await http.get("/inspect/api/sessions", params={"cursor": cursor})
                    assert found.status_code == 200 and len(found.json()["rows"]) <= 2

        run(work())

    @pytest.mark.parametrize(
        "data",
        [
            '{"budget": NaN}',
            '{"budget": 1e400}',
            '{"budget": 1.5}',
            '{"budget": -1}',
            '{"budget": true}',
            '{"budget": 99999999999999999999999999}',
            '{"budget": 1000000001}',
            '{"policy": "\\u0000"}',
            '{"policy": 7}',
            '{"budget": 5, "budget": {}}',
            "[" * 100_000,
            '{"policy": ' + "[" * 5_000 + "]" * 5_000 + "}",
        ],
    )
    def test_previews_of_nonsense(self, store: str, data: str) -> None:
        async def work() -> None:
            async with client(store) as (http, inspection):
                before = await inspection.version("work")
                headers = {**POST, "content-type": "application/json"}
                found = await http.post("/inspect/api/sessions/work/preview", content=data, headers=headers)
                assert found.status_code == 400 and found.json()["error"]["code"] == "invalid_request"
                assert await inspection.version("work") == before

        run(work())

    def test_texts_of_any_kind(self, store: str) -> None:
        async def work() -> None:
            async with client(store) as (http, _):
                for query in (
                    "\u202e",
                    "\x00",
                    "a" * 1_900,
                    "%",
                    "' OR 1=1 --",
                    "*" * 50,
                    '"' * 99,
                    "(" * 200,
                    "m" * 40,
                ):
                    found = await http.get("/inspect/api/sessions/work/recall", params={"query": query})
                    assert found.status_code in (200, 400), query
                    found = await http.get("/inspect/api/sessions", params={"query": query})
                    assert found.status_code == 200 and found.json()["rows"] == [], query
                assert (await http.get("/inspect/api/sessions/work/recall?query=" + "a" * 2_001)).status_code == 400
                for path in (
                    "%FF%FE",
                    "%ED%A0%80",
                    "a" * 3_000,
                    "..%2f..%2fetc",
                    "%00",
                    "work%00",
                    ".",
                    "work/../work",
                ):
                    found = await http.get(f"/inspect/api/sessions/{path}")
                    assert found.status_code in (200, 404), path

        run(work())

    @pytest.mark.parametrize("action", ["pin", "unpin", "edit", "compact"])
    def test_actions_on_nonsense(self, empty: str, action: str) -> None:
        async def work() -> None:
            async with client(await filled(empty), write=True) as (http, inspection):
                before = await inspection.version("work")
                asked: list[dict[str, Any]] = [
                    {"text": ""},
                    {"text": " \n"},
                    {"seq": -1},
                    {"seq": 10**9},
                    {"budget": 0},
                    {"budget": -5},
                    {"policy": "none such"},
                    {"compaction": "c\x00"},
                    {"text": "x" * 1_000_000} if action == "pin" else {"text": "", "compaction": "c0"},
                ]
                for fields in asked:
                    if action == "compact" and ("text" in fields or "seq" in fields or "compaction" in fields):
                        continue
                    found = await http.post(
                        "/inspect/api/sessions/work/actions",
                        json={"action": action, "confirm": True, **fields},
                        headers=POST,
                    )
                    assert found.status_code in (400, 404, 409), (fields, found.text)
                assert await inspection.version("work") == before

        run(work())


class TestDeletedWhileWatched:
    def test_every_answer_is_a_value_or_a_404(self, empty: str) -> None:
        """Readers ask for everything while another process deletes the session and makes it again."""

        async def work() -> None:
            await filled(empty)
            paths = ("", "/growth", "/context", "/messages", "/messages/5", "/steps/3", "/recall?query=E007")
            codes: set[int] = set()
            done = asyncio.Event()

            async def read(http: httpx.AsyncClient) -> None:
                while not done.is_set():
                    for path in paths:
                        found = await http.get(f"/inspect/api/sessions/work{path}")
                        codes.add(found.status_code)
                        assert found.status_code in (200, 404), (path, found.text)
                    assert (await http.get("/inspect/api/sessions")).status_code == 200

            async def watch(inspection: Inspection) -> None:
                async for _ in inspection.changes("work", pause=0.001):
                    if done.is_set():
                        return

            async def write() -> None:
                async with await open_store(empty) as opened:
                    for _ in range(4):
                        await (await opened.session("work")).delete()
                        await asyncio.sleep(0.05)
                        await (await opened.session("work")).save(body(8))
                        await asyncio.sleep(0.05)
                done.set()

            async with client(empty) as (http, inspection):
                await asyncio.gather(read(http), watch(inspection), write())
                assert codes == {200, 404}
                assert (await http.get("/inspect/api/sessions/work")).json()["messages"] == len(body(8)["messages"])

        run(work())
