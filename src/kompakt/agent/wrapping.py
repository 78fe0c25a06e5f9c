"""An ordinary SDK client whose calls are compacted, with nothing else changed.

The client given is copied; the copy is of a subclass of its class, so that it is what it was to everyone who looks. Its
requests pass one hook of the SDK's before they are sent: the body of a chat, a response or a message is made to fit,
everything else goes as it is. So streaming, parsing, raw responses, Azure and ``with_options`` work as they did.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

from kompakt import api
from kompakt.engine.policies import Policy, policy_named
from kompakt.errors import DoesNotFit, InputError, UsageError
from kompakt.model.budget import Budget
from kompakt.model.groups import is_request
from kompakt.model.messages import JsonObject
from kompakt.model.references import digest
from kompakt.session.store import Store
from kompakt.wire.openai_responses_rules import is_managed

_log = logging.getLogger("kompakt.agent")

ROUTES = {"/chat/completions": "openai-chat", "/responses": "openai-responses", "/messages": "anthropic"}
"""Which format is posted where; the end of a path tells."""

_BRANCHES = 20
"""Conversations that begin alike and are kept apart at most."""

Client = TypeVar("Client")


class Terms(msgspec.Struct, frozen=True):
    """How the calls of a wrapped client are compacted."""

    budget: int | Budget | None
    policy: Policy
    store: Store | None


def wrap(
    client: Client,
    *,
    budget: int | Budget | None = None,
    policy: str | Policy = "default",
    store: Store | None = None,
) -> Client:
    """Return a client like the one given (OpenAI, AsyncOpenAI, Anthropic, AsyncAnthropic) whose calls are compacted.

    ``budget`` is the model's own when none is given. With ``store`` (asynchronous clients only) what was said is kept
    in a session, named by how the conversation began. A history that cannot be made to fit is sent as it is.

    Raises:
        UsageError: this is not such a client.
    """
    found = type(client)
    hook = getattr(client, "_prepare_options", None)
    if hook is None or not hasattr(client, "copy"):
        raise UsageError(f"{found.__name__} cannot be wrapped; pass OpenAI, Anthropic or their async kin")
    waits = inspect.iscoroutinefunction(hook)
    if store is not None and not waits:
        raise UsageError("a store needs a client that awaits; wrap AsyncOpenAI or AsyncAnthropic instead")
    base: Any = found.__mro__[1] if hasattr(found, "kompakt_terms") else found
    terms = Terms(budget, policy_named(policy), store)
    copied = cast("Any", client).copy()
    copied.__class__ = _waiting(base, terms) if waits else _plain(base, terms)
    return copied


def _plain(base: Any, terms: Terms) -> type:
    """Make a class of clients that compact what they send."""

    class Wrapped(base):
        kompakt_terms = terms

        def _prepare_options(self, options: Any) -> Any:
            prepared = super()._prepare_options(options)
            format = _format(prepared)
            if format is not None:
                prepared.json_data = _compacted(prepared.json_data, format, terms)
            return prepared

    return _named(Wrapped, base)


def _waiting(base: Any, terms: Terms) -> type:
    """Make a class of clients that compact what they send, where the policy may await."""

    class Wrapped(base):
        kompakt_terms = terms

        async def _prepare_options(self, options: Any) -> Any:
            prepared = await super()._prepare_options(options)
            format = _format(prepared)
            if format is not None:
                prepared.json_data = await _acompacted(prepared.json_data, format, terms)
            return prepared

    return _named(Wrapped, base)


def _named(made: type, base: Any) -> type:
    """Let a class be called what its base is called."""
    made.__name__, made.__qualname__, made.__module__, made.__doc__ = (
        base.__name__,
        base.__qualname__,
        base.__module__,
        base.__doc__,
    )
    return made


def _format(options: Any) -> str | None:
    """Tell which format a request is in, when it holds a history that is the caller's to keep."""
    path = str(options.url).partition("?")[0].rstrip("/")
    body = options.json_data
    if str(options.method).lower() != "post" or not isinstance(body, Mapping):
        return None
    if is_managed(cast("JsonObject", body)):  # the provider keeps the history: what is sent is only what is new
        return None
    return next((format for end, format in ROUTES.items() if path.endswith(end)), None)


def _compacted(body: Mapping[str, Any], format: str, terms: Terms) -> JsonObject:
    given = _body(body)
    try:
        return api.compact(given, terms.budget, format=format, policy=terms.policy).payload
    except (DoesNotFit, InputError) as error:
        _log.warning("sent as it is: %s", error)
        return given


async def _acompacted(body: Mapping[str, Any], format: str, terms: Terms) -> JsonObject:
    given = _body(body)
    try:
        done = await api.acompact(given, terms.budget, format=format, policy=terms.policy)
        if terms.store is not None and done.changed:
            await _kept(given, format, terms.store)
    except (DoesNotFit, InputError) as error:
        _log.warning("sent as it is: %s", error)
        return given
    return done.payload


async def _kept(body: JsonObject, format: str, store: Store) -> None:
    """Keep a history in the session that is named by how it began; one that went on otherwise in another."""
    history = api.parse(body, format)
    first = next((at for at, message in enumerate(history) if is_request(message)), 0)
    begun = "".join(digest(message).hex()[:8] for message in history.messages[first : first + 2])
    for number in range(_BRANCHES):
        session = await store.session(f"wrapped-{format}-{begun}" + (f"-{number + 1}" if number else ""))
        try:
            await session.save(history)
        except UsageError:  # the caller has changed what was said: that is another conversation
            continue
        return
    _log.warning("not kept: a conversation that began like this one went on in %d other ways", _BRANCHES)


def _body(body: Mapping[str, Any]) -> JsonObject:
    """Copy a body without what the SDK puts in for fields that were not given."""
    return {key: value for key, value in body.items() if type(value).__name__ not in ("NotGiven", "Omit")}
