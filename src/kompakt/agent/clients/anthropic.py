"""Anthropic Messages: blocks that arrive in pieces, thinking with the signature that makes it acceptable again."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kompakt.agent.client import Delta, Managing, Reply, Stop, ToolSpec
from kompakt.agent.clients.anthropic_cache import with_breakpoints
from kompakt.agent.clients.base import (
    MAX_RETRIES,
    PLACEHOLDER,
    TIMEOUT,
    Answer,
    Caller,
    fields,
    missing_sdk,
    objects,
    without_nulls,
)
from kompakt.agent.clients.failures import Failed
from kompakt.agent.summarizer.prompts import NATIVE
from kompakt.errors import UsageError
from kompakt.model.messages import JsonObject
from kompakt.wire.anthropic import messages as anthropic

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

_STOPS: dict[str, Stop] = {
    "tool_use": "tools",
    "max_tokens": "length",
    "pause_turn": "length",  # a tool loop of the server's was cut; it goes on when asked again
    "refusal": "refused",
    "model_context_window_exceeded": "overflow",
}

ON_DEMAND, THRESHOLD, EDITING = "compact-2026-09-04", "compact-2026-01-12", "context-management-2025-06-27"
"""Betas: compaction that is asked for, at a size, and the clearing of tool outputs."""

BETA_HEADER = "anthropic-beta"

MIN_THRESHOLD = 50_000
"""Tokens below which the provider does not compact by itself."""

_PIECES: dict[str, str] = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Deltas with the field that they grow, which has the same name in the delta and in the block."""


class AnthropicMessages(Caller):
    """Talks to a model over ``/v1/messages``; ``cache`` marks where the prompt is cached."""

    format = anthropic.FORMAT

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
        self._caches = cache
        self._owned = client is None
        made = _make(base_url, api_key, timeout) if client is None else client
        # A copy that shares the connections, so that nobody's client is changed.
        self._client = made.with_options(max_retries=0)

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        """Make a request body with no messages in it: model, output limit, system text, tools."""
        body: JsonObject = {"model": self.model, "max_tokens": self.output_limit}
        if system:
            body["system"] = system
        if tools:
            body["tools"] = self._tools(tools)
        return {**body, "messages": []}

    async def close(self) -> None:
        """Let go of connections, unless the SDK's client was handed in: then they are its owner's."""
        if self._owned:
            await self._client.close()

    async def compact(self, body: JsonObject, *, instructions: str | None = None) -> Reply:
        """Have the provider summarise: the signed block that comes back stands for all that was sent.

        ``instructions`` take the place of the provider's own prompt, so they are said within one.
        """
        wanted = f"{NATIVE}\n\nAsked for in particular:\n{instructions}"
        compaction = {"type": "summarize", **({"instructions": wanted} if instructions else {})}
        rest = {key: value for key, value in body.items() if key not in ("context_management", "stream")}
        return await self.send({**rest, "compaction": compaction})

    def managed(self, how: Managing, tokens: int) -> JsonObject | None:
        """Return the parameters that let the provider compact, or hide tool outputs, from so many tokens on."""
        if how == "threshold" and tokens < MIN_THRESHOLD:
            return None
        kind = "compact_20260112" if how == "threshold" else "clear_tool_uses_20250919"
        return {"context_management": {"edits": [{"type": kind, "trigger": {"type": "input_tokens", "value": tokens}}]}}

    async def _ask(self, body: JsonObject, headers: dict[str, str]) -> object:
        options: Any = {"headers": _with_betas(body, headers)}
        return await self._client.post("/v1/messages", cast_to=object, body=self._marked(body), options=options)

    def _marked(self, body: JsonObject) -> JsonObject:
        return with_breakpoints(body) if self._caches else body

    async def _listen(self, body: JsonObject, headers: dict[str, str]) -> AsyncGenerator[JsonObject, None]:
        from anthropic import AsyncStream

        stream = await self._client.post(
            "/v1/messages",
            cast_to=object,
            body={**self._marked(body), "stream": True},
            options={"headers": _with_betas(body, headers)},
            stream=True,
            stream_cls=AsyncStream[object],
        )
        try:
            async for event in stream:
                yield fields(event)
        finally:
            await stream.close()

    def _assembly(self) -> _Blocks:
        return _Blocks()

    def _read(self, answer: JsonObject) -> Answer:
        if not isinstance(answer.get("content"), list):
            raise Failed("the answer holds no content", again=True)
        content = [without_nulls(block) for block in objects(answer["content"])]
        content = [block for block in content if block.get("type") != "text" or block.get("text")]
        stop = _STOPS.get(str(answer.get("stop_reason")), "end")
        if stop == "end" and any(block.get("type") == "tool_use" for block in content):
            stop = "tools"
        items = [{"role": "assistant", "content": content}] if content else []
        return Answer(items, stop, fields(answer.get("usage")) or None)

    def _errors(self) -> tuple[type[Exception], ...]:
        from anthropic import AnthropicError

        return (AnthropicError,)

    def _secrets(self) -> list[object]:
        # Getters, because the clients for Bedrock and Vertex have other secrets and not these.
        return [getattr(self._client, name, None) for name in ("api_key", "auth_token")]


def _make(base_url: str | None, api_key: str | None, timeout: float) -> AsyncAnthropic:
    try:
        from anthropic import AsyncAnthropic
    except ImportError:
        raise missing_sdk("anthropic") from None
    if base_url is not None and api_key is None:
        api_key = PLACEHOLDER
    made = AsyncAnthropic(api_key=api_key, base_url=base_url, timeout=timeout, max_retries=0)
    if made.api_key is None and made.auth_token is None and getattr(made, "credentials", None) is None:
        raise UsageError("there is no key: pass api_key=… or set ANTHROPIC_API_KEY")
    return made


def _with_betas(body: JsonObject, headers: dict[str, str]) -> dict[str, str]:
    """Name the betas that a request needs: for what it asks, and for the compaction that it begins with."""
    kinds = {str(edit.get("type")) for edit in objects(fields(body.get("context_management")).get("edits"))}
    begun = [block for message in objects(body.get("messages"))[:2] for block in objects(message.get("content"))[:1]]
    blocks = [block for block in begun if block.get("type") == "compaction"]
    betas = {
        ON_DEMAND: "compaction" in body or any(block.get("signature") for block in blocks),
        THRESHOLD: "compact_20260112" in kinds or any(not block.get("signature") for block in blocks),
        EDITING: any(kind.startswith("clear_") for kind in kinds),
    }
    named = [beta for beta, needed in betas.items() if needed]
    given = next((value for name, value in headers.items() if name.lower() == BETA_HEADER), None)
    rest = {name: value for name, value in headers.items() if name.lower() != BETA_HEADER}
    every = [*(given.split(",") if given else []), *named]
    return {**rest, BETA_HEADER: ",".join(dict.fromkeys(every))} if every else headers


class _Blocks:
    """Puts the blocks of a stream together."""

    def __init__(self) -> None:
        self.message: JsonObject = {}
        self.usage: JsonObject = {}
        self.blocks: dict[object, JsonObject] = {}
        self.inputs: dict[object, str] = {}
        self.ended = False

    def add(self, event: JsonObject) -> Iterable[Delta]:
        match event.get("type"):
            case "message_start":
                self.message = dict(fields(event.get("message")))
                self.usage = without_nulls(fields(self.message.get("usage")))
            case "content_block_start":
                self.blocks[event.get("index")] = dict(fields(event.get("content_block")))
            case "content_block_delta":
                yield from self._grow(event.get("index"), fields(event.get("delta")))
            case "message_delta":
                self.message |= fields(event.get("delta"))
                self.usage |= without_nulls(fields(event.get("usage")))
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
        if kind in _PIECES:
            field = _PIECES[kind]
            said = str(delta.get(field) or "")
            block[field] = str(block.get(field) or "") + said
            if field != "signature":
                yield Delta("text" if field == "text" else "reasoning", said)
        elif kind == "input_json_delta":
            said = str(delta.get("partial_json") or "")
            self.inputs[index] = self.inputs.get(index, "") + said
            yield Delta("call", said)
        elif kind == "citations_delta":
            block["citations"] = [*objects(block.get("citations")), delta.get("citation")]
        else:  # a kind of piece that is not known here, such as a compaction's: its fields are the block's
            block |= {key: value for key, value in delta.items() if key != "type"}

    def _block(self, index: object, *, cut: bool) -> JsonObject | None:
        """Finish a block; a call whose input was cut off is none."""
        block, text = self.blocks[index], self.inputs.get(index, "")
        if not text:
            return block
        try:
            return {**block, "input": json.loads(text)}
        except ValueError:
            # Broken by the model and not by a limit: the tool's refusal of it lets the model mend it.
            return None if cut else {**block, "input": {"INVALID_JSON": text}}
