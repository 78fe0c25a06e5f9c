"""A changed system text in a session that was begun with another.

Where the system text is part of the request's envelope, the agent says it with every request. Where it is a message, as
on OpenAI Chat, the old one stays in the store and the new one is shown in its place: recorded, and undone, like a
compaction. The prompt cache is lost once, as it is with every change of a system text.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kompakt.agent.live_session import Live
from kompakt.engine.context.context import Context
from kompakt.model.messages import Json
from kompakt.session.session import Session
from kompakt.wire.registry import WIRES

_log = logging.getLogger("kompakt.agent")


async def retold(session: Session, live: Live, opening: Sequence[Json]) -> bool:
    """Show the system text that the agent has now; return whether that is another than before."""
    said = next((message for message in WIRES[live.format].parse(opening, None) if message.role == "system"), None)
    if said is None:
        return False
    shown = next((message for message in live.context.project() if message.role == "system"), None)
    if shown is None:
        _log.warning("session %r was begun without a system text; the one given is not said", session.id)
        return False
    if shown.text == said.text:
        return False

    async def system_text(context: Context) -> bool:
        at = next((at for at in context.shown_indices() if context.shown(at).role == "system"), None)
        if at is not None:
            context.view.put(at, said)
        return at is not None

    return (await session.apply(system_text)).changed
