"""A framework's own message history in a kompakt store: durable, and compacted there if a budget is given.

Every message stays in the store. A compaction changes what ``load`` returns; recall searches everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from kompakt.engine.compaction.report import Report
from kompakt.engine.recall import Recalled
from kompakt.errors import UsageError
from kompakt.integrations.conversation import AdapterOptions
from kompakt.integrations.stores import StoreAccess, record_pins
from kompakt.model.groups import safe_cuts
from kompakt.model.messages import JsonObject
from kompakt.session.session import Session
from kompakt.session.store import Store
from kompakt.wire.registry import WIRES


class StoredHistory:
    """The wire items of one session in a store. ``options.budget`` is the size above which it is compacted."""

    def __init__(self, id: str, format: str, options: AdapterOptions, *, model: str | None = None) -> None:
        if options.store is None:
            raise UsageError("a stored history needs a store: pass store=… with a store or its URL")
        self.id = id
        self._wire, self._options, self._model = WIRES[format], options, model
        self._store = StoreAccess(options.store)

    async def load(self, limit: int | None = None) -> list[JsonObject]:
        """Return what the model should see, as it was stored; ``limit`` keeps the newest items.

        A limit never separates a call from its result or its reasoning: rather fewer items are returned.
        """
        return await self._store.run(lambda store: self._load(store, limit))

    async def _load(self, store: Store, limit: int | None) -> list[JsonObject]:
        session = await store.session(self.id)
        if not await session.exists():
            return []
        messages = (await session.project(model=self._model)).history.messages
        rendered = [self._wire.render(message) for message in messages]
        start = 0
        if limit is not None:
            cuts = safe_cuts(messages)
            start = next(cut for cut in cuts if sum(map(len, rendered[cut:])) <= max(limit, 0))
        return [item for items in rendered[start:] for item in items]

    async def append(self, items: Sequence[JsonObject], *, key: str | None = None) -> None:
        """Append items; then compact, if the budget is exceeded. ``key`` makes the call idempotent."""
        if items:
            report = await self._store.run(lambda store: self._append(store, items, key))
            if report is not None and self._options.on_compaction is not None:
                self._options.on_compaction(report)

    async def _append(self, store: Store, items: Sequence[JsonObject], key: str | None) -> Report | None:
        session = await store.session(self.id)
        await session.append(list(items), format=self._wire.format, key=key)
        return await self._compact(session, reason=None) if self._options.budget is not None else None

    async def compact(self) -> bool:
        """Compact now; return whether anything changed."""

        async def forced(store: Store) -> Report | None:
            return await self._compact(await store.session(self.id), reason="asked for")

        report = await self._store.run(forced)
        if report is not None and self._options.on_compaction is not None:
            self._options.on_compaction(report)
        return report is not None

    async def _compact(self, session: Session, *, reason: str | None) -> Report | None:
        await record_pins(session, self._options.pins)
        options = self._options
        done = await session.compact(
            options.budget, policy=options.policy, model=self._model, resume=False, reason=reason
        )
        return done.report if done.changed else None

    async def pop(self) -> JsonObject | None:
        """Remove the newest item from what ``load`` returns, and return it. The store keeps it."""
        return await self._store.run(self._pop)

    async def _pop(self, store: Store) -> JsonObject | None:
        items = await self._load(store, None)
        if not items:
            return None
        session = await store.session(self.id)
        await session.replace(items[:-1], format=self._wire.format, reason="the newest item was removed")
        return items[-1]

    async def clear(self) -> None:
        """Delete the session."""

        async def delete(store: Store) -> None:
            await store.delete(self.id)

        await self._store.run(delete)

    async def recall(self, query: str) -> Recalled:
        """Find or restore anything in the session."""

        async def recalled(store: Store) -> Recalled:
            session = await store.session(self.id)
            return await session.recall(query) if await session.exists() else Recalled(text="Nothing is stored yet.")

        return await self._store.run(recalled)
