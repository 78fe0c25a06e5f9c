"""Anthropic Messages: streamed blocks, signed thinking, and the cache breakpoints of requests.

Anthropic caches nothing without breakpoints, and then every step pays for the whole prompt again. A request gets three
of the four that are allowed: at the end of system prompt or tools, at the end of the previous request (where its cache
was written), and at the end of this request. Breakpoints are added to what is sent and never to stored messages.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from kompakt.agent.client import Delta, Managing, Reply, Stop, ToolSpec
from kompakt.agent.clients.base import (
    MAX_RETRIES,
    TIMEOUT,
    Answer,
    SDKClient,
    key_for,
    missing_sdk,
    without_nulls,
)
from kompakt.agent.clients.failures import AttemptFailed
from kompakt.agent.summarizer.prompts import NATIVE
from kompakt.errors import UsageError
from kompakt.model.json import as_object, as_objects
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.anthropic import messages as anthropic

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

_STOPS: dict[str, Stop] = {
    "tool_use": "tools",
    "max_tokens": "length",
    "pause_turn": "length",  # the server paused its own tool loop; the next request continues it
    "refusal": "refused",
    "model_context_window_exceeded": "overflow",
}

ON_DEMAND, THRESHOLD, EDITING = "compact-2026-09-04", "compact-2026-01-12", "context-management-2025-06-27"
"""Beta headers for compaction on demand, compaction at a threshold, and clearing of tool outputs."""

BETA_HEADER = "anthropic-beta"

MIN_THRESHOLD = 50_000
"""Smallest compaction trigger that the provider accepts, in tokens."""

_DELTA_FIELDS: dict[str, str] = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""The field that a delta extends; it has the same name in the delta and in the block."""

CACHE_CONTROL = {"type": "ephemeral"}
_NOT_CACHEABLE = ("thinking", "redacted_thinking")
"""Blocks that cannot have a breakpoint (problem code AN-24). Empty text blocks cannot either."""


class AnthropicMessages(SDKClient):
    """A client for ``/v1/messages``. ``cache`` adds cache breakpoints to requests."""

    format = anthropic.FORMAT
    path = "/v1/messages"

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        context_window: int | None = None,
        output_limit: int | None = None,
        max_retries: int = MAX_RETRIES,
        timeout: float = TIMEOUT,
        client: AsyncAnthropic | None = None,
        cache: bool = True,
    ) -> None:
        super().__init__(model, context_window=context_window, output_limit=output_limit, max_retries=max_retries)
        self._use(client, lambda: _connect(base_url, api_key, timeout))
        self._caches = cache

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        """Return a request body without messages: model, output limit, system prompt, tools."""
        body: JsonObject = {"model": self.model, "max_tokens": self.output_limit}
        if system:
            body["system"] = system
        if tools:
            body["tools"] = self._tools(tools)
        return {**body, "messages": []}

    async def compact(self, body: JsonObject, *, instructions: str | None = None) -> Reply:
        """Let the provider compact: the signed block in the answer replaces everything that was sent.

        ``instructions`` replace the provider's own prompt, so they are sent together with a complete prompt.
        """
        wanted = f"{NATIVE}\n\nAsked for in particular:\n{instructions}"
        compaction = {"type": "summarize", **({"instructions": wanted} if instructions else {})}
        rest = {key: value for key, value in body.items() if key not in ("context_management", "stream")}
        return await self.send({**rest, "compaction": compaction})

    def managed(self, how: Managing, tokens: int) -> JsonObject | None:
        """Return the parameters that make the provider compact, or clear tool outputs, above ``tokens``."""
        if how == "threshold" and tokens < MIN_THRESHOLD:
            return None
        kind = "compact_20260112" if how == "threshold" else "clear_tool_uses_20250919"
        return {"context_management": {"edits": [{"type": kind, "trigger": {"type": "input_tokens", "value": tokens}}]}}

    async def _post(self, path: str, body: JsonObject, headers: dict[str, str]) -> object:
        return await super()._post(path, self._prepared(body), _with_betas(body, headers))

    def _listen(self, body: JsonObject, headers: dict[str, str]) -> AsyncGenerator[JsonObject, None]:
        return super()._listen(self._prepared(body), _with_betas(body, headers))

    def _prepared(self, body: JsonObject) -> JsonObject:
        return with_breakpoints(body) if self._caches else body

    def _stream_class(self) -> object:
        from anthropic import AsyncStream

        return AsyncStream[object]

    def _assembly(self) -> _Blocks:
        return _Blocks()

    def _read(self, answer: JsonObject) -> Answer:
        if not isinstance(answer.get("content"), list):
            raise AttemptFailed("the answer has no content", retryable=True)
        content = [without_nulls(block) for block in as_objects(answer["content"])]
        content = [block for block in content if block.get("type") != "text" or block.get("text")]
        stop = _STOPS.get(str(answer.get("stop_reason")), "end")
        if stop == "end" and any(block.get("type") == "tool_use" for block in content):
            stop = "tools"
        items = [{"role": "assistant", "content": content}] if content else []
        return Answer(items, stop, as_object(answer.get("usage")) or None)

    def _errors(self) -> tuple[type[Exception], ...]:
        from anthropic import AnthropicError

        return (AnthropicError,)

    def _secrets(self) -> list[object]:
        # getattr: the SDK's clients for Bedrock and Vertex have other secrets.
        return [getattr(self._client, name, None) for name in ("api_key", "auth_token")]


def _connect(base_url: str | None, api_key: str | None, timeout: float) -> AsyncAnthropic:
    try:
        from anthropic import AsyncAnthropic
    except ImportError:
        raise missing_sdk("anthropic") from None
    client = AsyncAnthropic(api_key=key_for(base_url, api_key), base_url=base_url, timeout=timeout, max_retries=0)
    if client.api_key is None and client.auth_token is None and getattr(client, "credentials", None) is None:
        raise UsageError("no API key: pass api_key=… or set ANTHROPIC_API_KEY")
    return client


def _with_betas(body: JsonObject, headers: dict[str, str]) -> dict[str, str]:
    """Add the beta headers that a request needs: for its parameters, and for a compaction block at its start."""
    kinds = {str(edit.get("type")) for edit in as_objects(as_object(body.get("context_management")).get("edits"))}
    first = [
        block for message in as_objects(body.get("messages"))[:2] for block in as_objects(message.get("content"))[:1]
    ]
    blocks = [block for block in first if block.get("type") == "compaction"]
    betas = {
        ON_DEMAND: "compaction" in body or any(block.get("signature") for block in blocks),
        THRESHOLD: "compact_20260112" in kinds or any(not block.get("signature") for block in blocks),
        EDITING: any(kind.startswith("clear_") for kind in kinds),
    }
    needed_betas = [beta for beta, needed in betas.items() if needed]
    given = next((value for name, value in headers.items() if name.lower() == BETA_HEADER), None)
    rest = {name: value for name, value in headers.items() if name.lower() != BETA_HEADER}
    every = [*(given.split(",") if given else []), *needed_betas]
    return {**rest, BETA_HEADER: ",".join(dict.fromkeys(every))} if every else headers


class _Blocks:
    """Assembles the blocks of a stream."""

    def __init__(self) -> None:
        self.message: JsonObject = {}
        self.usage: JsonObject = {}
        self.blocks: dict[object, JsonObject] = {}
        self.inputs: dict[object, str] = {}
        self.ended = False

    def add(self, event: JsonObject) -> Iterable[Delta]:
        match event.get("type"):
            case "message_start":
                self.message = dict(as_object(event.get("message")))
                self.usage = without_nulls(as_object(self.message.get("usage")))
            case "content_block_start":
                self.blocks[event.get("index")] = dict(as_object(event.get("content_block")))
            case "content_block_delta":
                yield from self._grow(event.get("index"), as_object(event.get("delta")))
            case "message_delta":
                self.message |= as_object(event.get("delta"))
                self.usage |= without_nulls(as_object(event.get("usage")))
            case "message_stop":
                self.ended = True
            case _:
                pass

    def answer(self) -> JsonObject | None:
        if not self.ended:
            return None
        cut = self.message.get("stop_reason") not in ("tool_use", "end_turn", "stop_sequence", "pause_turn")
        content = [block for index in self.blocks if (block := self._block(index, cut=cut)) is not None]
        return {**self.message, "content": content, "usage": self.usage}

    def _grow(self, index: object, delta: JsonObject) -> Iterable[Delta]:
        block = self.blocks.setdefault(index, {})
        kind = str(delta.get("type"))
        if kind in _DELTA_FIELDS:
            field = _DELTA_FIELDS[kind]
            text = str(delta.get(field) or "")
            block[field] = str(block.get(field) or "") + text
            if field != "signature":
                yield Delta("text" if field == "text" else "reasoning", text)
        elif kind == "input_json_delta":
            text = str(delta.get("partial_json") or "")
            self.inputs[index] = self.inputs.get(index, "") + text
            yield Delta("call", text)
        elif kind == "citations_delta":
            block["citations"] = [*as_objects(block.get("citations")), delta.get("citation")]
        else:  # unknown delta types, such as that of a compaction block, carry fields of the block
            block |= {key: value for key, value in delta.items() if key != "type"}

    def _block(self, index: object, *, cut: bool) -> JsonObject | None:
        """Return a complete block, or ``None`` for a call with truncated input."""
        block, text = self.blocks[index], self.inputs.get(index, "")
        if not text:
            return block
        try:
            return {**block, "input": json.loads(text)}
        except ValueError:
            # The model wrote invalid JSON and was not truncated. The tool will reject it and the model can correct it.
            return None if cut else {**block, "input": {"INVALID_JSON": text}}


def with_breakpoints(body: JsonObject) -> JsonObject:
    """Add cache breakpoints, unless the request has its own.

    A request with one message and no tools is not continued, so writing a cache for it would only cost money.
    """
    messages = as_objects(body.get("messages"))
    if not messages or (len(messages) == 1 and not body.get("tools")) or _has_breakpoints(body, messages):
        return body
    marked = {**body, "messages": _with_message_breakpoints(messages, read_only=body.get("compaction") is not None)}
    if body.get("system"):
        return {**marked, "system": _marked_content(body["system"]) or body["system"]}
    return {**marked, "tools": _marked_block(as_objects(body["tools"]))} if body.get("tools") else marked


def _with_message_breakpoints(messages: list[JsonObject], *, read_only: bool) -> list[JsonObject]:
    """Mark the end of this request and of the previous one; ``read_only`` marks only the latter."""
    ends = list(_request_ends(messages))
    out = list(messages)
    for at in ends[1:] if read_only else ends:
        content = _marked_content(messages[at].get("content"))
        if content is not None:
            out[at] = {**messages[at], "content": content}
    return out


def _request_ends(messages: list[JsonObject]) -> Iterator[int]:
    """Yield the last message of this request, then the last message of the previous one."""
    at = len(messages) - 1
    yield at
    while at >= 0 and messages[at].get("role") != "assistant":
        at -= 1
    while at >= 0 and messages[at].get("role") == "assistant":
        at -= 1
    if at >= 0:
        yield at


def _marked_content(content: Json) -> list[JsonObject] | None:
    """Mark the last block that can have a breakpoint; a string counts as one text block."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else as_objects(content)
    able = [n for n, block in enumerate(blocks) if block.get("type") not in _NOT_CACHEABLE and block.get("text") != ""]
    return _marked_block(blocks, able[-1]) if able else None


def _marked_block(blocks: list[JsonObject], at: int = -1) -> list[JsonObject]:
    out = list(blocks)
    out[at] = {**blocks[at], "cache_control": CACHE_CONTROL}
    return out


def _has_breakpoints(body: JsonObject, messages: list[JsonObject]) -> bool:
    if body.get("cache_control"):
        return True
    listed = [*as_objects(body.get("tools")), *as_objects(body.get("system"))]
    inner = (block for message in messages for block in _blocks(message))
    return any("cache_control" in block for block in listed) or any("cache_control" in block for block in inner)


def _blocks(message: JsonObject) -> list[Any]:
    content = message.get("content")
    return [as_object(block) for block in cast("list[Any]", content)] if isinstance(content, list) else []
