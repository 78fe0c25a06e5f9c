"""Every store behaves like the simplest one over random sequences of calls.

Each call goes to the store and to ``MemoryRecords``; both must answer the same, or refuse the same. Fence numbers are
each store's own, so calls speak of the n-th fence that was given.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.backends import STORES, Place
from tests.contract.builders import digest, event, everything, new_head, row

from kompakt.errors import Conflict
from kompakt.store.memory import MemoryRecords
from kompakt.store.records import Batch, Fence, Head, Records

IDS = ("a", "b\0", "c\udc80")
TENANTS = ("one", "two")
LOCKS = ("append", "compact")
HASHES = [digest(text) for text in "xyz"]
NAMES = ("a", "A", "\0", "\udc80", "é", "x" * 200, "}:note:")

small = st.integers(0, 6)
session = st.integers(0, len(IDS) * len(TENANTS) - 1)

calls = st.one_of(
    st.tuples(
        st.just("commit"),
        session,
        st.integers(0, 3),
        st.integers(0, 2),
        st.sets(st.integers(0, 2), max_size=2),
        st.sampled_from(["now", "now", "now", "before", "none"]),
        st.one_of(st.none(), st.none(), small),
        st.sampled_from(["new", "new", "new", "last"]),
    ),
    st.tuples(st.just("rows"), session, small, st.integers(0, 12), small),
    st.tuples(st.just("rows_at"), session, st.lists(small, max_size=4)),
    st.tuples(st.just("turn_seqs"), session, st.integers(0, 3)),
    st.tuples(st.just("named"), session, st.lists(small, max_size=4)),
    st.tuples(st.just("events"), session, small),
    st.tuples(st.just("heads"), st.integers(0, 1), st.integers(0, 3), st.one_of(st.none(), session)),
    st.tuples(st.just("delete"), st.lists(session, max_size=2)),
    st.tuples(st.just("note"), session, st.lists(small, max_size=4)),
    st.tuples(st.just("notes"), st.integers(0, 1), st.lists(small, max_size=4)),
    st.tuples(st.just("forget"), st.integers(0, 1)),
    st.tuples(st.just("acquire"), session, st.sampled_from(LOCKS)),
    st.tuples(st.just("renew"), session, small),
    st.tuples(st.just("release"), session, small),
)


class Both:
    """A store and the reference store, with the same calls."""

    def __init__(self, records: Records, example: int) -> None:
        self.ways: tuple[Records, Records] = (records, MemoryRecords())
        self.tenants = [f"{tenant} {example}" for tenant in TENANTS]
        self.starts = [new_head(id, tenant) for tenant in self.tenants for id in IDS]
        self.before: dict[str, Head | None] = {}
        self.last: dict[str, tuple[Batch, Head | None]] = {}
        self.fences: list[tuple[Fence, Fence]] = []
        self.numbers = itertools.count()

    async def call(self, name: str, *args: Any) -> None:
        """Make one call on both and compare."""
        if name in ("commit", "acquire", "renew", "release", "heads", "delete", "note", "notes", "forget"):
            await getattr(self, name)(*args)
            return
        key = self.starts[args[0]].key
        if name == "rows":
            await self.same(lambda way: way.rows(key, after=args[1], upto=args[2], limit=args[3]))
        elif name == "named":
            await self.same(lambda way: way.named(key, [f"m{number:05x}" for number in args[1]]))
        elif name == "events":
            await self.same(lambda way: way.events(key, after=args[1]))
        else:
            await self.same(lambda way: getattr(way, name)(key, args[1]))

    async def same(self, call: Any) -> Any:
        """Compare the outcomes of a call."""
        outcomes = []
        for way in self.ways:
            try:
                outcomes.append(await call(way))
            except Conflict:
                outcomes.append(Conflict)
        assert outcomes[0] == outcomes[1]
        return outcomes[1]

    def fence(self, number: int | None) -> tuple[Fence | None, Fence | None]:
        """Pick a fence that was given at some time, in both stores' numbers."""
        return (None, None) if number is None or not self.fences else self.fences[number % len(self.fences)]

    async def commit(
        self, at: int, rows: int, events: int, blobs: set[int], saw: str, fence: int | None, id: str
    ) -> None:
        """Write a batch that may be stale, fenced, or the same as the one before."""
        start = self.starts[at]
        now = await self.ways[1].head(start.key)
        seen = {"now": now, "before": self.before.get(start.key), "none": None}[saw]
        base = seen or start
        hashes = [HASHES[number] for number in sorted(blobs)] if rows or events else []
        made_rows = [row(base.rows + 1 + n, turn=(base.rows + n) % 3, blobs=hashes) for n in range(rows)]
        made_events = [event(base.events + 1 + n, tip=base.rows, blobs=hashes) for n in range(events)]
        head = msgspec.structs.replace(
            base, rows=base.rows + rows, events=base.events + events, messages=base.messages + 1
        )
        given = {hash: f"{hash} {start.tenant} {next(self.numbers)}".encode() for hash in hashes}
        batch = Batch(f"batch {next(self.numbers)}", head, tuple(made_rows), tuple(made_events), given)
        if id == "last" and start.key in self.last:
            batch, seen = self.last[start.key]
        fences = dict(zip(self.ways, self.fence(fence), strict=True))
        outcome = await self.same(lambda way: way.commit(batch, seen=seen, fence=fences[way]))
        if outcome is True:
            self.before[start.key] = now
            self.last[start.key] = (batch, seen)

    async def heads(self, tenant: int, limit: int, after: int | None) -> None:
        """List a tenant's sessions."""
        after_key = self.starts[after].key if after is not None else ""
        await self.same(lambda way: way.heads(self.tenants[tenant], after=after_key, limit=limit))

    async def delete(self, numbers: list[int]) -> None:
        """Delete sessions."""
        await self.same(lambda way: way.delete([self.starts[number].key for number in numbers]))

    async def note(self, at: int, names: list[int]) -> None:
        """Note something new under names that may be taken, by any session of the tenant."""
        start, value = self.starts[at], b"%d" % next(self.numbers)
        await self.same(lambda way: way.note(start.tenant, start.key, {NAMES[name]: value for name in names}))

    async def notes(self, tenant: int, names: list[int]) -> None:
        """Read notes."""
        await self.same(lambda way: way.notes(self.tenants[tenant], [NAMES[name] for name in names]))

    async def forget(self, tenant: int) -> None:
        """Remove a tenant's notes."""
        await self.same(lambda way: way.forget(self.tenants[tenant]))

    async def acquire(self, at: int, name: str) -> None:
        """Try to take a lock, for longer than the test runs."""
        found = [await way.acquire(self.starts[at].key, name, lease=600) for way in self.ways]
        assert (found[0] is None) == (found[1] is None)
        if found[0] and found[1]:
            self.fences.append((found[0], found[1]))

    async def renew(self, at: int, number: int) -> None:
        """Renew by a fence that may be of another session."""
        if self.fences:
            fences = dict(zip(self.ways, self.fence(number), strict=True))
            await self.same(lambda way: way.renew(self.starts[at].key, fences[way], lease=600))

    async def release(self, at: int, number: int) -> None:
        """Release by a fence that may be of another session."""
        if self.fences:
            fences = dict(zip(self.ways, self.fence(number), strict=True))
            await self.same(lambda way: way.release(self.starts[at].key, fences[way]))

    async def finish(self) -> None:
        """Compare all that is there."""
        for start in self.starts:
            await self.same(lambda way, key=start.key: everything(way, key, HASHES))
        for tenant in self.tenants:
            await self.same(lambda way, tenant=tenant: way.heads(tenant))
            await self.same(lambda way, tenant=tenant: way.blobs(tenant, HASHES))
            await self.same(lambda way, tenant=tenant: way.notes(tenant, NAMES))
        await self.ways[0].delete([start.key for start in self.starts])


class TestRandom:
    @pytest.mark.parametrize("place", [name for name in STORES if name != "memory"], indirect=True)
    def test_every_store_behaves_like_memory(self, place: Place) -> None:
        """Any sequence of calls gives the same answers and the same final state."""
        examples = itertools.count()

        async def compare(records: Records, sequence: list[tuple[Any, ...]]) -> None:
            both = Both(records, next(examples))
            for call in sequence:
                await both.call(*call)
            await both.finish()

        with asyncio.Runner() as runner:
            records = runner.run(place.open())
            try:

                @settings(max_examples=max(10, settings.default.max_examples // 2))
                @given(st.lists(calls, min_size=5, max_size=40))
                def alike(sequence: list[tuple[Any, ...]]) -> None:
                    runner.run(compare(records, sequence))

                alike()
            finally:
                runner.run(records.close())
