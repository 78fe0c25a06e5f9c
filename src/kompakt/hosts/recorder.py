"""Record the sessions of coding agents in a store, and keep the originals of outputs that a hook shortens.

Recording reads the whole transcript and appends what is new, so it may run at any event, twice, or after a crash. An
output that a hook shortened is in the transcript only in its short form; the recorded session has the original.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from glob import escape, glob
from typing import Any, TypeVar

from kompakt.engine.admission import admit
from kompakt.errors import UsageError
from kompakt.hosts import places
from kompakt.hosts.notes import originals_in, read_transcript
from kompakt.model.messages import History, Message
from kompakt.model.references import digest
from kompakt.session.session import Session
from kompakt.session.store import Store, open_store

try:
    import fcntl
except ImportError:  # Windows: hooks of one session are not expected to overlap after a rewind
    fcntl = None

T = TypeVar("T")

STORE_SECONDS = 5.0
"""Time for the store while an agent waits. After it the hook gives up."""

RECORD_SECONDS = 120.0
"""Time for the store in the background."""

RECALL_SECONDS = 20.0
"""Time for a search while the model waits for it."""

RECALL_TOKENS = 2_000
"""Size of what a search returns."""

SUB_AGENT = "/agent-"
"""Separates a session and the name of its sub-agent."""


def record(agent: str, session: str, transcript: str, *, is_over: bool = False, seconds: float = RECORD_SECONDS) -> int:
    """Append the new messages of a transcript to the stored session; return how many messages it has.

    Unless the session ``is_over``, a last answer is left for the next time, because the agent may still be writing it.

    Raises:
        UnreadableFile: the file is no transcript.
        StoreError: the store cannot be used.
        TimeoutError: the store did not answer in time.
    """

    async def work(store: Store) -> int:
        async with _alone(agent, session):
            return await save(store)

    async def save(store: Store) -> int:
        # Hooks name the main session when they shorten an output, also in one of its sub-agents.
        main = await store.session(places.outputs_name(agent, session.partition(SUB_AGENT)[0]))
        history = read_transcript(transcript, await originals_in(main) if await main.exists() else None)
        if not is_over:
            history = history.with_messages(_finished(history))
        if len(history):
            await _save(await store.session(places.session_name(agent, session)), history)
            await _link(store, agent, session)
        return len(history)

    messages = _with_store(work, seconds)
    places.write(places.session_file(agent, session, "size"), str(messages).encode())
    return messages


@asynccontextmanager
async def _alone(agent: str, session: str) -> AsyncGenerator[None]:
    """Wait until no other process records this session: after a rewind, both would append what the other appends."""
    if fcntl is None:
        yield
        return
    path = places.session_file(agent, session, "lock")
    places.make_folder_of(path)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.05)
        yield


def _finished(history: History) -> list[Message]:
    """Return the messages up to the last one that does not come from the model."""
    messages = list(history)
    while messages and messages[-1].role == "assistant":
        messages.pop()
    return messages


async def _save(session: Session, history: History) -> None:
    try:
        await session.save(history)
    except UsageError:  # the transcript changed before its end: append what is not there yet
        await _append_missing(session, history)


async def _append_missing(session: Session, history: History) -> None:
    stored = Counter[bytes]()
    async for page in session.pages():
        stored.update(map(digest, page))
    missing = list[Message]()
    for message in history:
        name = digest(message)
        if stored[name]:
            stored[name] -= 1
        else:
            missing.append(message)
    if missing:
        await session.append(history.with_messages(missing))


async def _link(store: Store, agent: str, session: str) -> None:
    """Link a sub-agent to its session, so that recall finds both. One that ends first is linked when that is stored."""
    parent, separator, name = session.partition(SUB_AGENT)
    if separator and await (await store.session(places.session_name(agent, parent))).exists():
        await (await store.session(places.session_name(agent, session))).link(places.session_name(agent, parent))
    elif separator:
        places.write(places.session_file(agent, parent, f"agent-{name}"), session.encode())
    else:
        for note in glob(f"{escape(places.session_file(agent, session, ''))}agent-*"):
            with open(note, encoding="utf-8") as file:
                child = await store.session(places.session_name(agent, file.read()))
            if await child.exists():
                await child.link(places.session_name(agent, session))
            os.unlink(note)


def shorten(
    agent: str, session: str, *, call_id: str, tool: str, call_input: Any, output: str, seconds: float = STORE_SECONDS
) -> str | None:
    """Store a tool output and return its short form; ``None`` if it would gain little. Nothing is shortened unstored.

    Raises:
        StoreError: the store cannot be used.
        TimeoutError: the store did not answer in time.
    """
    trial = admit(output, reference="m0000", call_input=call_input)
    if trial is None:
        return None
    call = {"type": "tool_use", "id": call_id, "name": tool, "input": call_input}
    result = {"type": "tool_result", "tool_use_id": call_id, "content": output}
    messages = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]

    async def work(store: Store) -> list[str]:
        outputs = await store.session(places.outputs_name(agent, session))
        return await outputs.append(messages, format="anthropic", key=call_id)

    references = _with_store(work, seconds)
    if not references:  # stored by an earlier call for the same output, whose answer the agent has
        return None
    admitted = admit(output, reference=references[-1], call_input=call_input)
    return None if admitted is None else admitted.text


def recall(
    agent: str, session: str, query: str, *, tokens: int = RECALL_TOKENS, seconds: float = RECALL_SECONDS
) -> str:
    """Search the recorded session, or restore a reference.

    Raises:
        StoreError: the store cannot be used.
        TimeoutError: the store did not answer in time.
    """

    async def work(store: Store) -> str:
        return (await (await store.session(places.session_name(agent, session))).recall(query, tokens)).text

    return _with_store(work, seconds)


def _with_store(work: Callable[[Store], Awaitable[T]], seconds: float) -> T:
    async def run() -> T:
        async with asyncio.timeout(seconds):
            url = places.store_url()
            places.make_store_folder(url)
            async with await open_store(url) as store:
                return await work(store)

    return asyncio.run(run())
