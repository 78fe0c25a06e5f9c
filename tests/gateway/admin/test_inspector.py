"""The inspector in the gateway: the same checks as the session API, the same numbers, undo and preview."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from tests.gateway.admin.test_session_api import BOSS, HASHED, ODD, A, B, fill, write
from tests.gateway.stub_gateway import ADMIN, KEYS, Served, served, settings

from kompakt.gateway.storage.storage import Owner
from kompakt.gateway.tenants import Tenant, hash_key
from kompakt.view.values import ACTIONS

POST = {"x-kompakt-inspect": "1"}


@pytest.fixture(scope="module")
def gate() -> Iterator[Served]:
    """A gateway with keys and sessions of two tenants."""
    with served(settings(keys=HASHED, admin_keys=(hash_key(ADMIN),))) as made:
        made.run(fill(made, Tenant("tenant-a", "key"), ["one", "folder/three", ODD]))
        made.run(fill(made, Tenant("tenant-b", "key"), ["one", "only-b"], compacted=False))
        yield made


def ids(found: Any) -> set[str]:
    return {row["id"] for row in found.json()["rows"]}


class TestTenants:
    def test_a_tenant_sees_only_its_own_sessions(self, gate: Served) -> None:
        assert ids(gate.ask("GET", "/inspect/api/sessions", headers=A)) == {"one", "folder/three", ODD}
        assert ids(gate.ask("GET", "/inspect/api/sessions", headers=B)) == {"one", "only-b"}
        parts = (
            "",
            "/growth",
            "/messages",
            "/messages/1",
            "/steps/1",
            "/context",
            "/recall?query=marker001",
            "/events",
        )
        for part in parts:
            for id in ("only-b", "tenant-b%2Fonly-b", "never"):
                found = gate.ask("GET", f"/inspect/api/sessions/{id}{part}", headers=A)
                assert (found.status_code, found.json()["error"]["code"]) == (404, "not_found"), (id, part)

    def test_sessions_of_the_same_name_stay_apart(self, gate: Served) -> None:
        """Also where their values are cached."""
        for _ in range(2):
            for headers, tenant in ((A, "tenant-a"), (B, "tenant-b")):
                text = gate.ask("GET", "/inspect/api/sessions/one/messages/1", headers=headers).json()["text"]
                assert text == f"Begin one of {tenant}."
                shown = gate.ask("GET", f"/inspect/api/sessions/{tenant}%2Fone/messages/1", headers=BOSS)
                assert shown.json()["text"] == text

    def test_an_admin_key_sees_all_tenants(self, gate: Served) -> None:
        found = ids(gate.ask("GET", "/inspect/api/sessions", headers=BOSS))
        assert found == {"tenant-a/one", "tenant-a/folder/three", f"tenant-a/{ODD}", "tenant-b/one", "tenant-b/only-b"}

    def test_a_change_in_the_session_of_another_tenant_is_refused(self, gate: Served) -> None:
        for action in ACTIONS:
            asked = {"action": action, "confirm": True, "text": "Begin", "budget": 500}
            for id in ("only-b", "tenant-b%2Fonly-b"):
                path = f"/inspect/api/sessions/{id}/actions"
                assert gate.ask("POST", path, json=asked, headers={**A, **POST}).status_code == 404
                assert gate.ask("POST", path, json=asked, headers=POST).status_code == 401
        assert gate.ask("GET", "/inspect/api/sessions/only-b", headers=B).status_code == 200

    def test_a_change_needs_one_session(self) -> None:
        """The id of the list names one; an id without its tenant has to be that of one session."""
        with served(settings(keys=HASHED, admin_keys=(hash_key(ADMIN),))) as made:
            for tenant in ("tenant-a", "tenant-b"):
                made.run(fill(made, Tenant(tenant, "key"), ["one"]))
            for id, status in (("one", 409), ("tenant-b%2Fone", 200)):
                asked = {"action": "pin", "confirm": True, "text": "Begin"}
                path = f"/inspect/api/sessions/{id}/actions"
                found = made.ask("POST", path, json=asked, headers={**BOSS, **POST})
                assert found.status_code == status, found.text
                assert status == 200 or found.json()["error"]["code"] == "ambiguous_session"

    def test_each_row_of_the_list_has_an_id_of_its_own(self) -> None:
        """It shows and changes the session of the row, also where ids have slashes."""
        with served(settings(keys=HASHED, admin_keys=(hash_key(ADMIN),))) as made:
            stored = [("", "main"), ("", "acme/main"), ("", "/acme/main"), ("acme", "main"), ("acme", "acme/main")]
            for tenant, id in stored:
                if tenant:
                    made.run(made.gateway.registry.is_new(tenant))
                made.run(write(made, Owner(tenant, ""), id))
            rows = made.ask("GET", "/inspect/api/sessions", headers=BOSS).json()["rows"]
            assert len({row["id"] for row in rows}) == len(rows) == len(stored)
            said = set[str]()
            for row in rows:
                path = f"/inspect/api/sessions/{quote(row['id'], safe='')}"
                said.add(made.ask("GET", f"{path}/messages/1", headers=BOSS).json()["text"])
                asked = {"action": "pin", "confirm": True, "text": "Begin"}
                assert made.ask("POST", f"{path}/actions", json=asked, headers={**BOSS, **POST}).status_code == 200
            assert said == {f"Begin {id} of {tenant}." for tenant, id in stored}


class TestKeys:
    def test_without_a_key_only_the_page_is_served(self, gate: Served) -> None:
        """It asks for the key."""
        assert gate.get("/inspect/").status_code == 200
        for path in ("sessions", "sessions/one", "events", "openapi.json"):
            found = gate.get(f"/inspect/api/{path}")
            assert (found.status_code, found.json()["error"]["code"]) == (401, "key_required")

    def test_a_browser_logs_in_with_the_key(self, gate: Served) -> None:
        key = next(iter(KEYS))
        for wrong in ("wrong", "", "é"):
            found = gate.ask("POST", "/inspect/api/login", json={"key": wrong}, headers=POST)
            assert found.status_code == 401 and "set-cookie" not in found.headers
        assert gate.ask("POST", "/inspect/api/login", json={"key": key}).status_code == 403
        assert gate.ask("POST", "/inspect/api/login", json={}, headers=POST).status_code == 400
        assert "/inspect/api/login" in gate.ask("GET", "/inspect/api/openapi.json", headers=A).json()["paths"]
        found = gate.ask("POST", "/inspect/api/login", json={"key": key}, headers=POST)
        cookie = found.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/inspect" in cookie
        name = cookie.partition(";")[0]
        assert "only-b" not in ids(gate.ask("GET", "/inspect/api/sessions", headers={"cookie": name}))
        # The cookie is no key for the rest of the gateway, and does not help another site.
        assert gate.ask("GET", "/kompakt/sessions", headers={"cookie": name}).json()["sessions"] == []
        for foreign in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"host": "evil.example"}):
            found = gate.ask("GET", "/inspect/api/sessions", headers={"cookie": name, **foreign})
            assert found.status_code == 403
            for action in ACTIONS:
                asked = {"action": action, "confirm": True, "text": "x", "budget": 500}
                path = "/inspect/api/sessions/one/actions"
                found = gate.ask("POST", path, json=asked, headers={"cookie": name, **POST, **foreign})
                assert found.status_code == 403


class TestSession:
    def test_numbers_agree_with_the_session_api(self, gate: Served) -> None:
        shown = gate.ask("GET", "/kompakt/sessions/folder%2Fthree", headers=A).json()
        detail = gate.ask("GET", "/inspect/api/sessions/folder%2Fthree", headers=A).json()
        assert detail["messages"] == shown["session"]["messages"]
        (one,), (other,) = shown["compactions"], detail["compactions"]
        assert (one["id"], one["tokens_before"]) == (other["id"], other["tokens_before"])
        assert detail["actions"] == list(ACTIONS) and detail["writable"]
        found = gate.ask("GET", f"/inspect/api/sessions/folder%2Fthree/compactions/{one['id']}", headers=A).json()
        assert found["removed_count"] > 0 and found["unrecoverable"] == []

    def test_preview_writes_nothing_and_undo_takes_back_the_newest_compaction(self, gate: Served) -> None:
        gate.run(fill(gate, Tenant("tenant-a", "key"), ["undone"]))
        path = "/inspect/api/sessions/undone"
        headers = {**A, **POST}
        before = gate.ask("GET", path, headers=A).json()
        plan = gate.ask("POST", f"{path}/preview", json={"budget": 500}, headers=headers).json()
        assert plan["due"] and plan["fits"] and plan["tokens_after"] < plan["tokens_before"]
        assert gate.ask("GET", path, headers=A).json() == before
        asked = {"action": "undo", "confirm": True}
        wrong = gate.ask("POST", f"{path}/actions", json={**asked, "compaction": "c0"}, headers=headers)
        assert wrong.status_code == 400 and "there is no compaction" in wrong.json()["error"]["message"]
        assert gate.ask("POST", f"{path}/actions", json=asked, headers=headers).json()["changed"]
        after = gate.ask("GET", path, headers=A).json()
        assert after["compactions"][0]["undone"] and after["row"]["tokens"] > before["row"]["tokens"]
        again = gate.ask("POST", f"{path}/actions", json=asked, headers=headers)
        assert again.status_code == 400 and "nothing to undo" in again.json()["error"]["message"]
        assert gate.ask("POST", f"{path}/actions", json={**asked, "action": "edit"}, headers=headers).status_code == 400
        deleted = {**asked, "action": "delete"}
        assert gate.ask("POST", f"{path}/actions", json=deleted, headers=headers).json()["changed"]
        assert gate.ask("GET", path, headers=A).status_code == 404
