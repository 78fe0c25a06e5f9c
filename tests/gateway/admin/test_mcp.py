"""MCP in the gateway: the same checks as the session API, and sessions of other tenants are out of reach."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from tests.gateway.stub_gateway import ADMIN, KEYS, Served, served, settings

from kompakt.gateway.storage.storage import Owner
from kompakt.gateway.tenants import REGISTRY_TENANT, Tenant, hash_key

HASHED = {hash_key(key): tenant for key, tenant in KEYS.items()}
A, B = ({"x-kompakt-key": key} for key in KEYS)
BOSS = {"x-kompakt-key": ADMIN}
PROTOCOL = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
    "mcp-protocol-version": "2025-06-18",
}


async def fill(gate: Served, tenant: Tenant, names: list[str]) -> None:
    """Record sessions of a tenant, each with a secret of its own."""
    await gate.gateway.registry.is_new(tenant.id)
    owner = Owner.of(tenant)
    for name in names:
        session = await gate.gateway.storage.store_of(owner).session(owner.session(name))
        said = [{"role": "user", "content": f"The password of {tenant.id} in {name} is walrus."}]
        await session.append(said, format="openai-chat")


@pytest.fixture(scope="module")
def gate() -> Iterator[Served]:
    with served(settings(keys=HASHED, admin_keys=(hash_key(ADMIN),))) as made:
        made.run(fill(made, Tenant("tenant-a", "key"), ["shared", "only-a"]))
        made.run(fill(made, Tenant("tenant-b", "key"), ["shared", "only-b"]))
        yield made


def send(gate: Served, method: str, params: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return gate.post("/mcp", json=body, headers={**PROTOCOL, **headers})


def call(gate: Served, tool: str, arguments: dict[str, Any], headers: dict[str, str]) -> tuple[str, bool]:
    """Call a tool; return its text and whether it is an error."""
    done = send(gate, "tools/call", {"name": tool, "arguments": arguments}, headers)
    assert done.status_code == 200, done.text
    result = done.json()["result"]
    return result["content"][0]["text"], result["isError"]


class TestTenants:
    def test_a_client_recalls_its_own_sessions(self, gate: Served) -> None:
        """By argument, by header, or the newest."""
        for arguments, header, session in (
            ({"session": "shared"}, {}, "shared"),
            ({}, {"x-kompakt-session": "shared"}, "shared"),
            ({}, {}, "only-a"),
        ):
            said, is_error = call(gate, "recall", {"query": "password", **arguments}, {**A, **header})
            assert not is_error and f"of tenant-a in {session} is walrus" in said

    @pytest.mark.parametrize("tool", ["recall", "ledger", "status"])
    def test_sessions_of_another_tenant_are_out_of_reach(self, gate: Served, tool: str) -> None:
        """The answer is the one for a session that does not exist, whatever the client tries."""
        query = {"query": "password"} if tool == "recall" else {}
        never, _ = call(gate, tool, {**query, "session": "never"}, A)
        for id in ("only-b", "tenant-b/only-b", "../tenant-b/only-b"):
            for arguments, headers in (({"session": id}, A), ({}, {**A, "x-kompakt-session": id})):
                said, is_error = call(gate, tool, {**query, **arguments}, headers)
                assert is_error and said == never
        said, _ = call(gate, tool, {**query, "session": "shared"}, A)
        assert "tenant-b" not in said
        asked = gate.post(
            "/mcp?tenant=tenant-b",
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": query}},
            headers={**PROTOCOL, **A},
        )
        assert asked.status_code == 404 and "tenant-b in" not in asked.text

    def test_lists_have_only_own_sessions(self, gate: Served) -> None:
        for headers, own in ((A, {"shared", "only-a"}), (B, {"shared", "only-b"})):
            done = send(gate, "resources/read", {"uri": "kompakt://sessions"}, headers)
            listed = httpx.Response(200, text=done.json()["result"]["contents"][0]["text"]).json()
            assert {one["id"] for one in listed} == own
            uri = "kompakt://sessions/only-b/ledger"
            assert ("error" in send(gate, "resources/read", {"uri": uri}, headers).json()) is (headers is A)

    def test_an_admin_sees_all(self, gate: Served) -> None:
        for name in ("only-a", "only-b"):
            assert not call(gate, "status", {"session": name}, BOSS)[1]

    def test_an_admin_gets_the_newest_session_of_all_tenants(self) -> None:
        """Also where several tenants have a session of its name."""
        with served(settings(keys=HASHED, admin_keys=(hash_key(ADMIN),))) as made:
            for tenant in ("tenant-a", "tenant-b", "tenant-a"):
                made.run(fill(made, Tenant(tenant, "key"), ["main"]))
                said, is_error = call(made, "recall", {"query": "password"}, BOSS)
                assert not is_error and f"of {tenant} in main is walrus" in said

    def test_an_admin_names_the_tenant_of_a_session(self, gate: Served) -> None:
        done = send(gate, "resources/read", {"uri": "kompakt://sessions"}, BOSS)
        listed = httpx.Response(200, text=done.json()["result"]["contents"][0]["text"]).json()
        names = {one["id"] for one in listed}
        assert names == {"tenant-a/shared", "tenant-a/only-a", "tenant-b/shared", "tenant-b/only-b"}
        for tenant in ("tenant-a", "tenant-b"):
            for arguments, header in (
                ({"session": f"{tenant}/shared"}, {}),
                ({}, {"x-kompakt-session": f"{tenant}/shared"}),
            ):
                said, is_error = call(gate, "recall", {"query": "password", **arguments}, {**BOSS, **header})
                assert not is_error and f"of {tenant} in shared is walrus" in said
                assert f"{tenant}/shared" in call(gate, "status", arguments, {**BOSS, **header})[0]
        assert call(gate, "status", {"session": f"{REGISTRY_TENANT}/tenant-a"}, BOSS)[1]

    def test_the_header_names_a_session_whose_id_has_a_slash(self) -> None:
        """A listed id names the listed session."""
        with served(settings(keys=HASHED, admin_keys=(hash_key(ADMIN),))) as made:
            for tenant, id in (("acme", "main"), ("other", "acme/main")):
                made.run(fill(made, Tenant(tenant, "key"), [id]))
            for arguments, header, owner in (
                ({}, {"x-kompakt-session": "acme/main"}, "other in acme/main"),
                ({"session": "acme/main"}, {}, "acme in main"),
                ({"session": "other/acme/main"}, {}, "other in acme/main"),
            ):
                said, _ = call(made, "recall", {"query": "password", **arguments}, {**BOSS, **header})
                assert f"of {owner} is walrus" in said

    def test_nothing_can_be_changed(self, gate: Served) -> None:
        tools = send(gate, "tools/list", {}, BOSS).json()["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["recall", "ledger", "status"]
        assert call(gate, "manage", {"action": "undo"}, BOSS)[1]


class TestAccess:
    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"x-kompakt-key": "wrong"}, 401),
            ({"host": "attacker.example"}, 403),
            ({"origin": "https://attacker.example"}, 403),
            ({"sec-fetch-site": "cross-site"}, 403),
            ({"x-forwarded-for": "10.0.0.1"}, 403),
        ],
    )
    def test_foreign_requests_are_rejected(self, gate: Served, headers: dict[str, str], status: int) -> None:
        """Without a valid key neither a web page nor a forwarded request gets an answer."""
        assert send(gate, "tools/list", {}, headers).status_code == status

    def test_without_a_key_there_is_nothing_to_see(self, gate: Served) -> None:
        said, is_error = call(gate, "status", {}, {})
        assert is_error and "no session" in said

    @pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
    def test_only_post_is_answered(self, gate: Served, method: str) -> None:
        assert gate.ask(method, "/mcp", headers={**PROTOCOL, **A}).status_code == 405

    @pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b'{"jsonrpc": "2.0", "id": 1, "method": 7}'])
    def test_a_broken_body_is_a_client_error(self, gate: Served, data: bytes) -> None:
        assert gate.post("/mcp", content=data, headers={**PROTOCOL, **A}).status_code == 400
        assert send(gate, "tools/list", {}, A).status_code == 200


class TestClient:
    @pytest.mark.parametrize("mode", ["auto", "legacy"])
    def test_the_official_client_works_with_a_key(self, gate: Served, mode: Any) -> None:
        async def work() -> CallToolResult:
            async with httpx2.AsyncClient(headers=A, trust_env=False) as http:
                transport = streamable_http_client(f"{gate.url}/mcp", http_client=http)
                async with Client(transport, mode=mode) as client:
                    return await client.call_tool("recall", {"query": "password", "session": "only-a"})

        done = asyncio.run(work())
        assert isinstance(done.content[0], TextContent) and "is walrus" in done.content[0].text

    def test_the_server_is_stopped_with_the_gateway(self) -> None:
        with served(settings()) as made:
            assert send(made, "tools/list", {}, {}).status_code == 200
            assert any("McpEndpoint" in repr(one) for one in made.gateway._at_exit)
        assert made.gateway._at_exit == []
