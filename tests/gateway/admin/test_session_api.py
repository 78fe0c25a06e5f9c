"""The session API and the inspect page: tenants see their own sessions, and responses match the document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import pytest
from jsonschema import Draft202012Validator
from tests.gateway.stub_gateway import ADMIN, KEYS, Served, served, settings

from kompakt.errors import StoreUnavailable
from kompakt.gateway.storage.storage import Owner
from kompakt.gateway.tenants import REGISTRY_TENANT, Tenant, hash_key, tenant_of

HASHED = {hash_key(key): tenant for key, tenant in KEYS.items()}
A, B = ({"x-kompakt-key": key} for key in KEYS)
BOSS = {"x-kompakt-key": ADMIN}
ODD = 'a "<script>alert(1)</script>&x=1'


async def fill(gate: Served, tenant: Tenant, names: list[str], *, compacted: bool = True) -> None:
    """Record sessions of a tenant, as the proxy would."""
    await gate.gateway.registry.is_new(tenant.id)
    owner = Owner.of(tenant)
    for name in names:
        session = await gate.gateway.storage.store_of(owner).session(owner.session(name))
        said: list[dict[str, Any]] = [{"role": "user", "content": f"Begin {name} of {tenant.id}."}]
        for at in range(40):
            said.append({"role": "assistant", "content": f"step {at} marker{at:03} " + "word " * 40})
            said.append({"role": "user", "content": "go on"})
        await session.append(said, format="openai-chat")
        if compacted:
            await session.compact(1_500)


async def write(gate: Served, owner: Owner, id: str) -> None:
    """Store a short session."""
    session = await gate.gateway.storage.store_of(owner).session(id)
    await session.append([{"role": "user", "content": f"Begin {id} of {owner.tenant}."}], format="openai-chat")


@pytest.fixture(scope="module")
def gate() -> Iterator[Served]:
    """A gateway with keys and some sessions of both tenants, one of which has an odd name."""
    with served(settings(keys=HASHED, admin_keys=(hash_key(ADMIN),))) as made:
        made.run(fill(made, Tenant("tenant-a", "key"), ["one", "two", "folder/three", ODD]))
        made.run(fill(made, Tenant("tenant-b", "key"), ["one", "only-b"], compacted=False))
        yield made


def ids(found: Any) -> set[str]:
    return {one["id"] for one in found.json()["sessions"]}


class TestTenants:
    def test_a_tenant_sees_only_its_own_sessions(self, gate: Served) -> None:
        assert ids(gate.ask("GET", "/kompakt/sessions", headers=A)) == {"one", "two", "folder/three", ODD}
        assert ids(gate.ask("GET", "/kompakt/sessions", headers=B)) == {"one", "only-b"}
        for path in ("/kompakt/sessions/only-b", "/kompakt/sessions/only-b/recall?q=marker001"):
            mine, never = gate.ask("GET", path, headers=A), gate.ask("GET", path.replace("only-b", "never"), headers=A)
            assert (mine.status_code, mine.json()) == (404, never.json())

    @pytest.mark.parametrize("path", ["", "/only-b", "/only-b/recall"])
    def test_naming_another_tenant_is_rejected(self, gate: Served, path: str) -> None:
        """In the query, and in the position of the next page."""
        query = {"tenant": "tenant-b", "q": "marker001"}
        assert gate.ask("GET", f"/kompakt/sessions{path}", headers=A, params=query).status_code == 404
        assert gate.ask("GET", "/kompakt/sessions", headers=A, params={"after": "tenant-b/0"}).status_code == 404
        assert gate.ask("DELETE", "/kompakt/sessions/only-b?tenant=tenant-b", headers=A).status_code == 404

    def test_configured_keys_are_required(self, gate: Served) -> None:
        """Also on the same machine; the page explains it."""
        assert gate.get("/kompakt/sessions").json() == {"sessions": [], "next": None}
        assert "send one in the header x-kompakt-key" in gate.get("/inspect/plain").text

    def test_an_admin_key_sees_all_tenants(self, gate: Served) -> None:
        """All tenants, or one of them."""
        assert ids(gate.ask("GET", "/kompakt/sessions", headers=BOSS)) == {"one", "two", "folder/three", ODD, "only-b"}
        assert ids(gate.ask("GET", "/kompakt/sessions?tenant=tenant-b", headers=BOSS)) == {"one", "only-b"}
        assert gate.ask("GET", "/kompakt/sessions/only-b", headers=BOSS).json()["session"]["tenant"] == "tenant-b"
        assert gate.ask("GET", "/kompakt/sessions?tenant=kompakt%20tenants", headers=BOSS).status_code == 404

    def test_a_change_names_the_tenant_where_several_have_a_session_of_the_id(self) -> None:
        with served(settings(keys=HASHED, admin_keys=(hash_key(ADMIN),))) as made:
            for tenant in ("tenant-a", "tenant-b"):
                made.run(fill(made, Tenant(tenant, "key"), ["main"]))
            for method, path in (("DELETE", ""), ("POST", "/undo")):
                done = made.ask(method, f"/kompakt/sessions/main{path}", headers=BOSS)
                assert (done.status_code, done.json()["error"]["code"]) == (409, "ambiguous_session")
            assert made.ask("GET", "/kompakt/sessions/main", headers=BOSS).status_code == 200
            done = made.ask("POST", "/kompakt/sessions/main/undo?tenant=tenant-a", headers=BOSS)
            assert done.status_code == 200
            assert made.ask("DELETE", "/kompakt/sessions/main?tenant=tenant-b", headers=BOSS).status_code == 204
            assert ids(made.ask("GET", "/kompakt/sessions", headers=A)) == {"main"}
            assert ids(made.ask("GET", "/kompakt/sessions", headers=B)) == set()
            named = f"/kompakt/sessions/{quote(f'{REGISTRY_TENANT}/tenant-a')}"
            assert made.ask("DELETE", named, headers=BOSS).status_code == 404
            assert made.ask("DELETE", "/kompakt/sessions/main", headers=BOSS).status_code == 204

    def test_an_id_with_a_slash_is_not_taken_for_that_of_a_tenant(self) -> None:
        """A session whose id is the whole text counts first; the error names queries that reach each session."""
        with served(settings(keys=HASHED, admin_keys=(hash_key(ADMIN),))) as made:
            made.run(fill(made, Tenant("acme", "key"), ["main"], compacted=False))
            path = "/kompakt/sessions/acme/main"
            assert made.ask("GET", path, headers=BOSS).json()["session"]["tenant"] == "acme"
            made.run(write(made, Owner("", ""), "acme/main"))
            assert made.ask("GET", path, headers=BOSS).json()["session"]["tenant"] == ""
            assert made.ask("DELETE", path, headers=BOSS).status_code == 204
            made.run(write(made, Owner("", ""), "acme/main"))
            made.run(fill(made, Tenant("other", "key"), ["acme/main"], compacted=False))
            refused = made.ask("DELETE", path, headers=BOSS)
            assert refused.status_code == 409
            queries = re.findall(r"\?tenant=[^,]*", refused.json()["error"]["message"])
            assert queries == ["?tenant=", "?tenant=other"]
            for query in queries:
                assert made.ask("DELETE", path + query, headers=BOSS).status_code == 204
            (left,) = made.ask("GET", "/kompakt/sessions", headers=BOSS).json()["sessions"]
            assert (left["tenant"], left["id"]) == ("acme", "main")

    def test_a_session_with_a_lone_surrogate_in_its_id_is_listed_and_read(self) -> None:
        """A program can write such a session into the store of the gateway."""
        odd = "odd \ud800 id"

        async def write_odd(gate: Served) -> None:
            session = await gate.gateway.storage.store_of(Owner("", "")).session(odd)
            said = [{"role": role, "content": "words \ud800" * 40} for role in ("user", "assistant") * 20]
            await session.append([{"role": "user", "content": "Begin."}, *said], format="openai-chat")
            await session.compact(1_000)

        with served(settings()) as made:
            made.run(write_odd(made))
            found = made.get("/kompakt/sessions").json()["sessions"]
            assert [(one["id"], one["compactions"]) for one in found] == [(odd, 1)]
            assert "odd � id" in made.get("/inspect/plain").text
            asked = {"name": "status", "arguments": {}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}
            accept = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}
            done = made.post("/mcp", json=body, headers=accept)
            assert not done.json()["result"]["isError"], done.text

    def test_credentials_are_separate_tenants(self) -> None:
        """Their sessions have different prefixes; a local client sees them all."""
        with served(settings()) as made:
            one = tenant_of({"x-api-key": "sk-1"}, {}, made.gateway.settings)
            other = tenant_of({"x-api-key": "sk-2"}, {}, made.gateway.settings)
            made.run(fill(made, one, ["s"], compacted=False))
            made.run(fill(made, other, ["s"], compacted=False))
            first = ids(made.get("/kompakt/sessions", x_api_key="sk-1"))
            second = ids(made.get("/kompakt/sessions", x_api_key="sk-2"))
            assert len(first) == len(second) == 1 and first != second
            assert ids(made.get("/kompakt/sessions")) == first | second
            (id,) = first
            assert made.get(f"/kompakt/sessions/{id}", x_api_key="sk-2").status_code == 404
            assert made.get(f"/kompakt/sessions/{id}", x_api_key="sk-1").json()["session"]["id"] == id
            assert made.get("/kompakt/sessions/s", x_api_key="sk-1").json()["session"]["id"] == id


class TestEndpoints:
    def test_pages_continue_where_they_ended(self, gate: Served) -> None:
        """Across all tenants, no session twice."""
        seen: list[tuple[str, str]] = []
        after = ""
        for _ in range(10):
            page = gate.ask("GET", "/kompakt/sessions", headers=BOSS, params={"limit": 2, "after": after}).json()
            seen += [(one["tenant"], one["id"]) for one in page["sessions"]]
            if page["next"] is None:
                break
            after = page["next"]
        assert len(seen) == len(set(seen)) == 6

    def test_session_details_report_saved_tokens(self, gate: Served) -> None:
        """Tokens before and after each compaction."""
        shown = gate.ask("GET", "/kompakt/sessions/two", headers=A).json()
        (compaction,) = shown["compactions"]
        assert shown["session"]["messages"] == 81 and shown["session"]["compactions"] == 1
        assert compaction["tokens_before"] > compaction["tokens_after"] == shown["session"]["tokens_after"]

    def test_recall_finds_hidden_messages(self, gate: Served) -> None:
        """Word for word, within the token limit."""
        found = gate.ask("GET", "/kompakt/sessions/folder%2Fthree/recall", headers=A, params={"q": "marker003"}).json()
        assert found["found"] and "step 3 marker003" in found["text"] and found["references"]
        short = gate.ask("GET", "/kompakt/sessions/one/recall", headers=A, params={"q": "marker003", "tokens": 20})
        assert short.json()["tokens"] <= 20

    @pytest.mark.parametrize(
        "query",
        ["", "q=", "q=%20", f"q={'x' * 2001}", "q=a&tokens=0", "q=a&tokens=-1", "q=a&tokens=1e3", "q=a&tokens=9999999"],
    )
    def test_invalid_parameters_are_rejected(self, gate: Served, query: str) -> None:
        """With 400 and the expected values."""
        found = gate.ask("GET", f"/kompakt/sessions/one/recall?{query}", headers=A)
        assert found.status_code == 400 and found.json()["error"]["code"] == "invalid_query"

    def test_a_deleted_session_is_not_found(self, gate: Served) -> None:
        """Permanently, and only for the tenant that owned it."""
        gate.run(fill(gate, Tenant("tenant-a", "key"), ["gone"]))
        assert gate.ask("DELETE", "/kompakt/sessions/gone", headers=A).status_code == 204
        assert gate.ask("DELETE", "/kompakt/sessions/gone", headers=A).status_code == 404
        assert gate.ask("GET", "/kompakt/sessions/gone/recall?q=marker001", headers=A).status_code == 404

    def test_other_methods_and_paths_are_rejected(self, gate: Served) -> None:
        """With the allowed methods; no request is sent upstream."""
        found = gate.ask("POST", "/kompakt/sessions", headers=A)
        assert found.status_code == 405 and "GET" in found.headers["allow"]
        for path in ("/kompakt", "/kompakt/", "/kompakt/nothing"):
            assert gate.ask("GET", path, headers=A).status_code == 404

    def test_an_unavailable_store_is_reported(self, gate: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        """With 503 and Retry-After."""

        async def fails(*_: object, **__: object) -> None:
            raise StoreUnavailable("gone")

        monkeypatch.setattr(gate.gateway.store.records, "head", fails)
        monkeypatch.setattr(gate.gateway.store.records, "heads", fails)
        for path in ("/kompakt/sessions", "/kompakt/sessions/one", "/inspect/plain"):
            found = gate.ask("GET", path, headers=A)
            assert found.status_code == 503 and found.headers["retry-after"] == "5", path


class Tags(HTMLParser):
    """Collects the tags and links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "style")]
        self.links += [value or "" for name, value in attrs if name == "href"]


class TestPage:
    def test_it_lists_sessions_and_shows_one(self, gate: Served) -> None:
        """With the saved tokens; links connect the pages."""
        found = gate.ask("GET", "/inspect/plain", headers=A)
        (read := Tags()).feed(found.text)
        assert found.headers["content-type"].startswith("text/html")
        assert all(link.startswith("?") for link in read.links) and len(read.links) == 4
        one = gate.ask("GET", "/inspect/plain?session=two&tenant=tenant-a&q=marker003", headers=A)
        assert "81 messages" in one.text and "1 compactions" in one.text and "step 3 marker003" in one.text

    def test_values_on_the_page_are_escaped(self, gate: Served) -> None:
        """The content security policy allows no scripts and no external resources."""
        for path in (
            "/inspect/plain",
            "/inspect/plain?session=" + ODD.replace("&", "%26"),
            "/inspect/plain?session=one&q=<b>marker003",
        ):
            found = gate.ask("GET", path, headers=A)
            (read := Tags()).feed(found.text)
            assert found.status_code == 200
            assert not read.tags & {"script", "b", "img", "link", "iframe", "object"}
            policy = found.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy
            assert not [link for link in read.links if "//" in link]

    def test_a_session_of_another_tenant_is_not_found(self, gate: Served) -> None:
        assert gate.ask("GET", "/inspect/plain?session=only-b", headers=A).status_code == 404


class TestDescription:
    @pytest.mark.parametrize(
        ("method", "path", "described"),
        [
            ("GET", "/kompakt/sessions", "/kompakt/sessions"),
            ("GET", "/kompakt/sessions?limit=1", "/kompakt/sessions"),
            ("GET", "/kompakt/sessions?limit=x", "/kompakt/sessions"),
            ("GET", "/kompakt/sessions/two", "/kompakt/sessions/{id}"),
            ("GET", "/kompakt/sessions/never", "/kompakt/sessions/{id}"),
            ("DELETE", "/kompakt/sessions/never", "/kompakt/sessions/{id}"),
            ("GET", "/kompakt/sessions/two/recall?q=marker003", "/kompakt/sessions/{id}/recall"),
            ("GET", "/kompakt/sessions/two/recall?q=nothingofthekind", "/kompakt/sessions/{id}/recall"),
            ("GET", "/kompakt/sessions/two/recall", "/kompakt/sessions/{id}/recall"),
        ],
    )
    @pytest.mark.parametrize(
        "headers", [A, {"x-kompakt-key": "wrong"}, {"host": "evil.example"}], ids=["a", "wrong", "far"]
    )
    def test_responses_match_the_document(
        self, gate: Served, method: str, path: str, described: str, headers: dict[str, str]
    ) -> None:
        """Every status is listed, and every body matches its schema."""
        document = gate.get("/kompakt/openapi.json").json()
        found = gate.ask(method, path, headers=headers)
        listed = document["paths"][described][method.lower()]["responses"]
        assert str(found.status_code) in listed
        schema = listed[str(found.status_code)]["content"]["application/json"]["schema"]
        Draft202012Validator({**document, **schema}).validate(found.json())
        assert found.headers["content-type"] == "application/json"

    def test_wrong_methods_get_the_allowed_ones(self, gate: Served) -> None:
        """The same methods as in the document."""
        found = gate.ask("PATCH", "/kompakt/sessions/one", headers=A)
        assert found.status_code == 405
        assert {name.strip() for name in found.headers["allow"].split(",")} == {"GET", "HEAD", "DELETE"}
