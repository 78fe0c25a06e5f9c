"""LiteLLM: a callback that compacts requests after routing, for the SDK's asynchronous calls and the proxy.

SDK: ``litellm.callbacks = [handler]``. Proxy: ``litellm_settings: {callbacks: kompakt.integrations.litellm.handler}``.
It runs after the router has chosen a deployment, so the budget is that of the model that answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Unpack, cast

from kompakt.integrations.conversation import (
    AdapterArguments,
    AdapterOptions,
    Conversations,
    RequestFrame,
    WireConverter,
    missing,
)
from kompakt.model.json import encode
from kompakt.model.messages import JsonObject
from kompakt.session.store import Store
from kompakt.wire.registry import WIRES

try:
    from litellm.integrations.custom_logger import CustomLogger
except ImportError as error:
    raise missing("litellm", error) from error

__all__ = ["KompaktLogger", "handler"]

FORMATS = {
    "completion": "openai-chat",
    "acompletion": "openai-chat",
    "responses": "openai-responses",
    "aresponses": "openai-responses",
    "anthropic_messages": "anthropic",
}
"""The format of a request, by LiteLLM's type of the call."""


class KompaktLogger(CustomLogger):
    """Keeps requests inside the context window.

    ``budget`` is a number of tokens or a ``Budget``; by default it is the window of the model. ``pins`` are texts that
    must be kept verbatim. ``store`` gets the whole conversation at each compaction.
    """

    def __init__(
        self,
        *,
        store: Store | str | None = None,
        **options: Unpack[AdapterArguments],
    ) -> None:
        super().__init__()
        chosen = AdapterOptions(store=store, recall=False, **options)
        self._conversations = {format: Conversations(WireConverter(format), chosen) for format in set(FORMATS.values())}

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any] | None:
        """Replace the messages of a request by their compacted view."""
        format = FORMATS.get(str(getattr(call_type, "value", call_type)))
        if format is None:
            return None
        key = WIRES[format].messages_key
        messages: object = kwargs.get(key)
        if not isinstance(messages, list) or not all(isinstance(one, dict) for one in cast("list[Any]", messages)):
            return None
        given = cast("list[JsonObject]", messages)
        model = str(kwargs.get("model") or "").rpartition("/")[2] or None
        envelope = {name: kwargs[name] for name in ("system", "instructions", "tools") if kwargs.get(name)}
        frame = RequestFrame({key: [], **envelope} if envelope else {}, model=model)
        view = await self._conversations[format].get(_key(kwargs, given)).aview(given, frame)
        return {**kwargs, key: view}


def _key(kwargs: Mapping[str, Any], messages: Sequence[JsonObject]) -> str:
    """Return the session that the caller names; otherwise, requests that start alike are one conversation."""
    named = kwargs.get("litellm_session_id") or (kwargs.get("metadata") or {}).get("session_id")
    return f"litellm-{named}" if named else f"litellm-{sha256(encode(list(messages[:2]))).hexdigest()[:24]}"


handler = KompaktLogger()
"""A callback with default options, for the configuration file of the proxy."""
