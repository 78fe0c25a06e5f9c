"""The tenant of a request comes from a key, a trusted header, or a hash of the credential."""

from __future__ import annotations

import asyncio
import hmac
import json
from typing import Any

import pytest
from starlette.datastructures import Headers
from tests.gateway.stub_gateway import KEYS, served, settings

from kompakt.errors import StoreUnavailable
from kompakt.gateway.config import GatewayConfig
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.tenants import (
    Tenant,
    TenantRegistry,
    hash_key,
    is_admin,
    is_private,
    load_secret,
    make_key,
    tenant_of,
    tenant_of_key,
)
from kompakt.session.store import open_store

HASHED = {hash_key(key): tenant for key, tenant in KEYS.items()}
KEY = next(iter(KEYS))


def who(made: GatewayConfig, *, query: dict[str, str] | None = None, **headers: str) -> Tenant:
    return tenant_of(Headers({name.replace("_", "-"): value for name, value in headers.items()}), query or {}, made)


class TestWays:
    def test_a_key_determines_the_tenant_for_any_credential(self) -> None:
        """Rotating the provider's credential does not change it."""
        made = settings(keys=HASHED)
        assert who(made, x_kompakt_key=KEY, authorization="Bearer one") == ("tenant-a", "key")
        assert who(made, x_kompakt_key=KEY, authorization="Bearer two") == ("tenant-a", "key")

    @pytest.mark.parametrize("headers", [{}, {"x_kompakt_key": "wrong"}, {"authorization": f"Bearer {KEY}"}])
    def test_configured_keys_are_required(self, headers: dict[str, str]) -> None:
        """A missing key, a wrong key, and a key in a header that is forwarded upstream are rejected."""
        with pytest.raises(GatewayError) as caught:
            who(settings(keys=HASHED), **headers)
        assert caught.value.status == 401
        assert KEY not in str(caught.value)

    def test_a_trusted_header_names_the_tenant(self) -> None:
        """A missing header and an invalid name are rejected."""
        made = settings(tenant_header="X-Tenant")
        assert who(made, x_tenant="acme") == ("acme", "header")
        for value, status in (("", 401), ("a b", 400), ("credential-0", 400), ("anonymous", 400), ("x" * 200, 400)):
            with pytest.raises(GatewayError) as caught:
                who(made, x_tenant=value)
            assert caught.value.status == status

    def test_a_trusted_header_does_not_excuse_a_wrong_key(self) -> None:
        made = settings(keys=HASHED, tenant_header="x-tenant")
        assert who(made, x_tenant="acme") == ("acme", "header")
        with pytest.raises(GatewayError):
            who(made, x_tenant="acme", x_kompakt_key="wrong")

    def test_the_header_of_a_credential_does_not_matter(self) -> None:
        """Clients change the header; the tenant stays the same."""
        made = settings()
        found = {
            who(made, authorization="Bearer sk-1"),
            who(made, authorization="bearer  sk-1"),
            who(made, x_api_key="sk-1"),
            who(made, x_goog_api_key="sk-1"),
            who(made, query={"key": "sk-1"}),
        }
        assert len(found) == 1
        assert found != {who(made, x_api_key="sk-2")}

    def test_the_tenant_does_not_reveal_the_credential(self) -> None:
        """Another secret gives another tenant."""
        one, other = who(settings(), x_api_key="sk-1"), who(settings(secret="another"), x_api_key="sk-1")
        assert one.source == "credential"
        assert "sk-1" not in one.id
        assert one.id != other.id

    def test_requests_without_a_credential_have_a_tenant(self) -> None:
        """Local models need no credential."""
        assert who(settings()) == ("anonymous", "none")


class TestKeys:
    def test_every_entry_is_compared_in_constant_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An early exit would reveal the position of the entry."""
        compared: list[str] = []

        def compare(known: str, digest: str) -> bool:
            compared.append(known)
            return known == digest

        monkeypatch.setattr(hmac, "compare_digest", compare)
        assert tenant_of_key(KEY, settings(keys=HASHED)) == "tenant-a"
        assert tenant_of_key("wrong", settings(keys=HASHED)) is None
        assert compared == [*HASHED, *HASHED]

    def test_keys_are_long_and_unique(self) -> None:
        """A plain hash is enough for a random key."""
        made = {make_key() for _ in range(50)}
        assert len(made) == 50 and min(map(len, made)) >= 40

    def test_an_admin_key_has_no_tenant(self) -> None:
        """It can read sessions but cannot send provider requests."""
        made = settings(keys=HASHED, admin_keys=(hash_key("boss"),))
        assert is_admin("boss", made) and not is_admin(KEY, made)
        with pytest.raises(GatewayError):
            who(made, x_kompakt_key="boss")

    def test_gateway_headers_do_not_go_upstream(self) -> None:
        made = settings(tenant_header="x-tenant")
        assert all(is_private(name, made) for name in ("x-kompakt-key", "x-kompakt-session", "x-tenant"))
        assert not any(is_private(name, made) for name in ("authorization", "x-api-key", "x-request-id"))


class TestRegistry:
    async def _twice(self, url: str) -> tuple[list[bool], set[str]]:
        async with await open_store(url) as store:
            one, other = TenantRegistry(store, Metrics()), TenantRegistry(store, Metrics())
            found = [await one.is_new("acme"), await one.is_new("acme"), await other.is_new("acme")]
            return found, {await load_secret(store), await load_secret(store)}

    def test_a_tenant_is_new_once_across_replicas(self, tmp_path: Any) -> None:
        """Replicas agree on the tenants and on the secret."""
        found, secrets = asyncio.run(self._twice(f"sqlite:///{tmp_path}/a.db"))
        assert found == [True, False, False]
        assert len(secrets) == 1 and len(next(iter(secrets))) == 64

    def test_an_unavailable_store_reports_no_new_tenants(self) -> None:
        """Requests do not wait or fail, and the store is not queried for a while."""

        async def work() -> tuple[list[bool], str]:
            async with await open_store("memory:") as store:
                registry = TenantRegistry(store, metrics := Metrics())

                async def fails(key: str) -> None:
                    raise StoreUnavailable("gone")

                store.records.head = fails  # type: ignore[method-assign]
                return [await registry.is_new("acme") for _ in range(3)], metrics.text().decode()

        new, text = asyncio.run(work())
        assert new == [False] * 3
        assert "kompakt_store_failures_total 1.0" in text


def history(answers: int) -> bytes:
    said = [{"role": role, "content": "x"} for _ in range(answers) for role in ("user", "assistant")]
    return json.dumps({"model": "m", "messages": [*said, {"role": "user", "content": "go"}]}).encode()


class TestRotation:
    def test_a_new_credential_with_a_long_history_is_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        """Once, in the response, the log and a metric; the request is served."""
        with served(settings()) as gate:
            fresh = gate.post("/v1/chat/completions", content=history(0), headers={"authorization": "Bearer old"})
            again = gate.post("/v1/chat/completions", content=history(20), headers={"authorization": "Bearer old"})
            rotated = gate.post("/v1/chat/completions", content=history(20), headers={"authorization": "Bearer new"})
            after = gate.post("/v1/chat/completions", content=history(21), headers={"authorization": "Bearer new"})
            assert [one.headers.get("x-kompakt-tenant") for one in (fresh, again, rotated, after)] == [
                None,
                None,
                "new",
                None,
            ]
            assert rotated.json()["size"] == len(history(20))
            assert "unknown credential with a long history" in caplog.text
            assert "Bearer" not in caplog.text
            assert "kompakt_new_tenants_total 1.0" in gate.gateway.metrics.text().decode()

    def test_a_key_is_never_a_rotation(self) -> None:
        """Its tenant is configured."""
        with served(settings(keys=HASHED)) as gate:
            found = gate.post("/v1/messages", content=history(20), headers={"x-kompakt-key": KEY})
            assert found.json()["tenant"] == "tenant-a"
            assert "x-kompakt-tenant" not in found.headers
