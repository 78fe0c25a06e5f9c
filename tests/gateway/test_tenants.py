"""Whose request it is: keys, a trusted header, else a hash of the credential; never the credential itself."""

from __future__ import annotations

import asyncio
import hmac
import json
from typing import Any

import pytest
from starlette.datastructures import Headers
from tests.gateway.standing import KEYS, served, settings

from kompakt.errors import StoreUnavailable
from kompakt.gateway.config import GatewayConfig
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.tenancy.tenants import (
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
    def test_a_key_names_its_tenant_whatever_the_credential(self) -> None:
        """A rotated credential of the provider changes nothing."""
        made = settings(keys=HASHED)
        assert who(made, x_kompakt_key=KEY, authorization="Bearer one") == ("tenant-a", "key")
        assert who(made, x_kompakt_key=KEY, authorization="Bearer two") == ("tenant-a", "key")

    @pytest.mark.parametrize("headers", [{}, {"x_kompakt_key": "wrong"}, {"authorization": f"Bearer {KEY}"}])
    def test_without_a_known_key_nothing_goes_where_keys_are_configured(self, headers: dict[str, str]) -> None:
        """Neither without one, nor with a wrong one, nor with one in a header that goes upstream."""
        with pytest.raises(GatewayError) as caught:
            who(settings(keys=HASHED), **headers)
        assert caught.value.status == 401
        assert KEY not in str(caught.value)

    def test_a_trusted_header_names_the_tenant(self) -> None:
        """One that is missing is refused, and so is one that is no name."""
        made = settings(tenant_header="X-Tenant")
        assert who(made, x_tenant="acme") == ("acme", "header")
        for value, status in (("", 401), ("a b", 400), ("credential-0", 400), ("anonymous", 400), ("x" * 200, 400)):
            with pytest.raises(GatewayError) as caught:
                who(made, x_tenant=value)
            assert caught.value.status == status

    def test_a_key_that_is_wrong_is_not_helped_by_a_header(self) -> None:
        """Who presents a key means it."""
        made = settings(keys=HASHED, tenant_header="x-tenant")
        assert who(made, x_tenant="acme") == ("acme", "header")
        with pytest.raises(GatewayError):
            who(made, x_tenant="acme", x_kompakt_key="wrong")

    def test_the_credential_is_the_same_in_every_header(self) -> None:
        """Clients change how they show it; it stays the same party."""
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

    def test_the_credential_cannot_be_seen_in_its_name(self) -> None:
        """And another secret gives another name."""
        one, other = who(settings(), x_api_key="sk-1"), who(settings(secret="another"), x_api_key="sk-1")
        assert one.source == "credential"
        assert "sk-1" not in one.id
        assert one.id != other.id

    def test_no_credential_is_a_tenant_too(self) -> None:
        """A model on one's own machine asks for none."""
        assert who(settings()) == ("anonymous", "none")


class TestKeys:
    def test_every_entry_is_compared_in_constant_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Finding the first one early would tell where it is listed."""
        compared: list[str] = []

        def compare(known: str, digest: str) -> bool:
            compared.append(known)
            return known == digest

        monkeypatch.setattr(hmac, "compare_digest", compare)
        assert tenant_of_key(KEY, settings(keys=HASHED)) == "tenant-a"
        assert tenant_of_key("wrong", settings(keys=HASHED)) is None
        assert compared == [*HASHED, *HASHED]

    def test_keys_are_long_and_never_twice_the_same(self) -> None:
        """A plain hash is enough for what nobody can guess."""
        made = {make_key() for _ in range(50)}
        assert len(made) == 50 and min(map(len, made)) >= 40

    def test_an_administrators_key_is_no_tenants(self) -> None:
        """It sees; it sends nothing."""
        made = settings(keys=HASHED, admin_keys=(hash_key("boss"),))
        assert is_admin("boss", made) and not is_admin(KEY, made)
        with pytest.raises(GatewayError):
            who(made, x_kompakt_key="boss")

    def test_headers_between_client_and_gateway_stay_there(self) -> None:
        """Nothing of the gateway's own goes upstream."""
        made = settings(tenant_header="x-tenant")
        assert all(is_private(name, made) for name in ("x-kompakt-key", "x-kompakt-session", "x-tenant"))
        assert not any(is_private(name, made) for name in ("authorization", "x-api-key", "x-request-id"))


class TestRegistry:
    async def _twice(self, url: str) -> tuple[list[bool], set[str]]:
        async with await open_store(url) as store:
            one, other = TenantRegistry(store, Metrics()), TenantRegistry(store, Metrics())
            found = [await one.is_new("acme"), await one.is_new("acme"), await other.is_new("acme")]
            return found, {await load_secret(store), await load_secret(store)}

    def test_a_tenant_is_new_once_wherever_it_is_asked(self, tmp_path: Any) -> None:
        """Replicas agree, on the tenants and on the secret."""
        found, secrets = asyncio.run(self._twice(f"sqlite:///{tmp_path}/a.db"))
        assert found == [True, False, False]
        assert len(secrets) == 1 and len(next(iter(secrets))) == 64

    def test_a_store_that_is_down_says_no(self) -> None:
        """Nobody waits, nobody is refused, and it is not asked for a while."""

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
    def test_a_new_credential_with_a_long_history_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        """Once, in the answer, in the log and in a metric; the history goes through all the same."""
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
        """Its tenant is known by name."""
        with served(settings(keys=HASHED)) as gate:
            found = gate.post("/v1/messages", content=history(20), headers={"x-kompakt-key": KEY})
            assert found.json()["tenant"] == "tenant-a"
            assert "x-kompakt-tenant" not in found.headers
