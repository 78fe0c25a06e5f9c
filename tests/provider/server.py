"""The provider: a local server that judges requests, counts tokens, records and answers.

``with Provider(Script(steps=100), window=16_000) as p:`` and point an SDK at ``p.url``. Everything runs in one thread,
one request at a time up to its answer, so what it recorded can be read once the client has its answers.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType, TracebackType
from typing import Any

import uvicorn
from rs_bpe.bpe import openai
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.judges import judge
from tests.provider import anthropic, chat, compactions, gemini, responses
from tests.provider.answer import Answer, Refusal, Seen, Usage
from tests.provider.compactions import Compactor
from tests.provider.faults import ANSWERS, GARBAGE, Cut, Fault, Reachable
from tests.provider.frames import frame
from tests.provider.prompt_cache import Break, Tracker
from tests.provider.script import Script
from tests.provider.signatures import Signer
from tests.provider.summaries import asks_for_summary, good
from tests.provider.token_count import count_head, count_item, count_text

DIALECTS: dict[str, ModuleType] = {module.FORMAT: module for module in (chat, responses, anthropic, gemini)}
KEY_HEADERS = {"anthropic": ("x-api-key", "authorization"), "gemini": ("x-goog-api-key",)}
EVENTS = "text/event-stream"
PER_CALL = 8


@dataclass
class Record:
    """One request and what became of it."""

    number: int
    format: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int = 200
    kind: str = "step"
    """step, summary, compaction or fault."""
    conversation: str = ""
    stream: bool = False
    prompt: int = 0
    """Tokens sent, as counted here."""
    size: int = 0
    """Bytes of the body that was answered, had it not been cut."""
    frames: tuple[bytes, ...] = ()
    """The events of a streamed answer."""
    answer: Answer | None = None
    usage: Usage | None = None
    refusal: Refusal | None = None
    overflowed: bool = False
    fault: Fault | None = None


class Quick(uvicorn.Server):
    """A server that ends at once, even with requests in flight."""

    async def main_loop(self) -> None:
        """Wait for the end."""
        while not self.should_exit:
            await asyncio.sleep(0.01)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End every connection and every task."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()
        await asyncio.gather(*self.server_state.tasks, return_exceptions=True)


class Provider:
    """A provider with one window for all its models; see the package for how requests are judged.

    ``estimate_factor`` counts more (or less) than is there. ``stop_at_window`` takes a prompt that fits without its
    output and stops with model_context_window_exceeded (Anthropic). ``truncates`` silently cuts the prompt instead of
    refusing it. ``style`` words the overflow of chat completions: openai, vllm, llama.cpp. ``binds`` forces or forbids
    the binding of thinking to its prefix; by default the model's name decides. ``asks`` recognizes requests for a
    summary, which ``summary`` answers, from steps of the script. Without ``compacts`` it has no compaction of its own.
    """

    def __init__(
        self,
        script: Script | Callable[[Seen], Answer] | None = None,
        *,
        window: int = 16_000,
        estimate_factor: float = 1.0,
        summary: Callable[[Seen], Answer | str] = good,
        asks: Callable[[Seen], bool] = asks_for_summary,
        stop_at_window: bool = False,
        truncates: bool = False,
        style: str = "openai",
        binds: bool | None = None,
        compacts: bool = True,
        models: Iterable[str] = ("test-model",),
    ) -> None:
        self.script = script if script is not None else Script()
        self.window, self.estimate_factor, self.summary = window, estimate_factor, summary
        self.asks = asks
        self.stop_at_window, self.truncates, self.style, self.models = stop_at_window, truncates, style, tuple(models)
        self.requests: list[Record] = []
        self.crashes: list[str] = []
        self._faults: dict[int, Fault] = {}
        self._signer, self._tracker = Signer(binds=binds), Tracker()
        self.compacts, self.compactor = compacts, Compactor()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self._app(), log_level="critical", lifespan="off", http=Reachable, ws="none")
        self._server = Quick(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> Provider:
        self._thread.start()
        end = time.monotonic() + 60
        while not self._server.started:
            if time.monotonic() > end:
                raise TimeoutError("the provider did not start")
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)
        self._socket.close()
        if self.crashes and kind is None:
            raise AssertionError(f"the provider itself failed: {self.crashes}")

    @property
    def refusals(self) -> list[Record]:
        """Requests that broke a rule; overflows, faults and compactions that are not offered are no refusals."""
        refused = (record for record in self.requests if record.refusal and record.kind != "compaction")
        return [record for record in refused if not record.overflowed and not record.fault]

    @property
    def overflows(self) -> list[Record]:
        """Requests that were too long."""
        return [record for record in self.requests if record.overflowed]

    @property
    def violations(self) -> list[str]:
        """What the script missed: the task, a constraint, results of its calls."""
        return self.script.violations if isinstance(self.script, Script) else []

    @property
    def prefix_breaks(self) -> list[Break]:
        """Requests that do not start with the previous one."""
        return self._tracker.breaks

    def fault(self, nth: int | Iterable[int], kind: str, **options: Any) -> None:
        """Let something happen to the nth request (from 1; sent again, a request counts again)."""
        for number in [nth] if isinstance(nth, int) else nth:
            self._faults[number] = Fault(kind, **options)

    def fault_next(self, kind: str, *, times: int = 1, **options: Any) -> None:
        """Let something happen to the next requests."""
        start = len(self.requests) + 1
        self.fault(range(start, start + times), kind, **options)

    def _app(self) -> Starlette:
        async def crashed(request: Request, error: Exception) -> Response:
            self.crashes.append(f"{type(error).__name__}: {error}")
            return JSONResponse({"error": {"message": "the fake provider failed"}}, status_code=500)

        routes = [
            Route("/v1/chat/completions", partial(self._serve, format="openai-chat"), methods=["POST"]),
            Route("/v1/responses", partial(self._serve, format="openai-responses"), methods=["POST"]),
            Route("/v1/responses/compact", partial(self._serve, format="openai-responses"), methods=["POST"]),
            Route("/v1/messages", partial(self._serve, format="anthropic"), methods=["POST"]),
            # The SDK uses v1 by default; most other clients use v1beta.
            Route("/v1/models/{call:path}", partial(self._serve, format="gemini"), methods=["POST"]),
            Route("/v1beta/models/{call:path}", partial(self._serve, format="gemini"), methods=["POST"]),
            Route("/v1/models", self._list, methods=["GET"]),
            Route("/v1beta/models", self._list, methods=["GET"]),
        ]
        return Starlette(routes=routes, exception_handlers={Exception: crashed})

    async def _list(self, request: Request) -> Response:
        named = list(enumerate(self.models))
        if request.url.path.startswith("/v1beta") or "x-goog-api-key" in request.headers:
            limits = {"inputTokenLimit": self.window, "outputTokenLimit": self.window}
            return JSONResponse({"models": [{"name": f"models/{name}", **limits} for _, name in named]})
        if "anthropic-version" in request.headers:
            shared = {"type": "model", "created_at": "2026-01-01T00:00:00Z", "lifecycle": "active"}
            limits = {"max_input_tokens": self.window, "max_tokens": self.window}
            data = [{"id": name, "display_name": name, **shared, **limits} for _, name in named]
            ends = {"first_id": self.models[0], "last_id": self.models[-1], "has_more": False}
            return JSONResponse({"data": data, **ends})
        data = [
            {"id": n, "object": "model", "created": at, "owned_by": "local", "max_model_len": self.window}
            for at, n in named
        ]
        return JSONResponse({"object": "list", "data": data})

    async def _serve(self, request: Request, format: str) -> Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            raw = await request.body()
        except ClientDisconnect:  # who asked has thought better of it
            return Response(status_code=499)
        record = Record(len(self.requests) + 1, format, request.url.path, headers, None)
        self.requests.append(record)
        try:
            record.body = json.loads(raw)
        except ValueError:
            return self._refuse(record, Refusal(400, "invalid_request_error", "We could not parse the JSON body."))
        if fault := self._faults.get(record.number):
            record.fault = fault
            if fault.kind == "closed":
                record.kind = "fault"
                return Cut(b"", None, media_type="application/json")
            if refusal := fault.refusal(format):
                return self._refuse(record, refusal)
            if fault.kind == "slow":
                await asyncio.sleep(fault.seconds)
        return self._answer(record, self._model(request, record), request.query_params.get("key"))

    def _model(self, request: Request, record: Record) -> str:
        if record.format != "gemini":
            record.stream = isinstance(record.body, dict) and bool(record.body.get("stream"))
            return str(record.body.get("model") or "") if isinstance(record.body, dict) else ""
        model, _, method = str(request.path_params["call"]).partition(":")
        record.stream = method == "streamGenerateContent" and request.query_params.get("alt") == "sse"
        return model if method in ("generateContent", "streamGenerateContent") else ""

    def _answer(self, record: Record, model: str, key: str | None) -> Response:
        dialect, body = DIALECTS[record.format], record.body
        if not key and not any(record.headers.get(name) for name in KEY_HEADERS.get(record.format, ("authorization",))):
            return self._refuse(record, Refusal(401, "invalid_api_key", "You didn't provide an API key."))
        if broken := self._broken(record, model):
            return self._refuse(record, Refusal(400, "invalid_request_error", "; ".join(broken[:3])))
        seen: Seen = dialect.read(body, model, record.stream)
        if refusal := self._signer.refusal(seen, body, record.headers) or self.compactor.refusal(seen):
            return self._refuse(record, refusal)
        reads = self._reads(record, seen)
        output = seen.max_output or 0
        over = record.prompt + output > self.window
        stops = self.stop_at_window and record.prompt < self.window
        if over and not stops and not self.truncates:
            record.overflowed = True
            refusal = dialect.overflow(record.prompt, output, self.window, self.style)
            return self._overflow(record, refusal, seen)
        if compactions.is_asked(record.path, body):
            return self._compacted(record, seen)
        answer = self._decide(record, seen)
        if record.kind == "step" and any(record.prompt > one.tokens for one in reads):
            answer = replace(answer, compaction=self.compactor.summary(seen, "threshold"))
        limited = self._limited(answer, seen, self.window - record.prompt if over and stops else None)
        if record.conversation and answer.calls and not limited.calls and isinstance(self.script, Script):
            self.script.cut(seen)
        answer = limited
        answer = replace(answer, signature=self._signer.sign(seen, answer))
        record.answer, record.usage = answer, self._usage(record, seen, answer)
        return self._respond(record, seen)

    def _reads(self, record: Record, seen: Seen) -> list[compactions.Managed]:
        """Count what the model reads; return the compactions at a threshold that the request allows."""
        managed = compactions.managed(record.format, record.body)
        items = self.compactor.read(seen)
        record.prompt = self._count(seen, items)
        if any(one.kind == "clearing" and record.prompt > one.tokens for one in managed):
            self.compactor.made.append("clearing")
            record.prompt = self._count(seen, self.compactor.cleared(items))
        return [one for one in managed if one.kind == "compaction"]

    def _count(self, seen: Seen, items: list[Any]) -> int:
        counted = count_head(seen.system, seen.raw_tools) + sum(count_item(item) for item in items)
        return int(counted * self.estimate_factor)

    def _compacted(self, record: Record, seen: Seen) -> Response:
        record.kind = "compaction"
        if not self.compacts:
            return self._refuse(
                record, Refusal(400, "invalid_request_error", "This model does not support compaction.")
            )
        if isinstance(self.script, Script):
            self.script.settle(seen)
        text, mark = self.compactor.summary(seen, "demand")
        usage = DIALECTS[record.format].usage_of(Usage(record.prompt, count_text(text)))
        return JSONResponse(self.compactor.answer(seen, record.number, usage, text, mark))

    def _broken(self, record: Record, model: str) -> list[str]:
        if not isinstance(record.body, dict):
            return ["BODY: expected an object"]
        if not model:
            return ["BODY model: you must provide a model parameter"]
        asked = {**record.body, "model": model} if record.format == "gemini" else record.body
        native = compactions.faults(record.format, record.path, record.body, record.headers)
        found = [*DIALECTS[record.format].faults(record.body, record.headers), *native, *judge(record.format, asked)]
        asks = compactions.is_asked(record.path, record.body)  # which may end with the model's own words
        return [fault for fault in found if not (asks and fault.startswith(("AN-18", "AN-19")))]

    def _decide(self, record: Record, seen: Seen) -> Answer:
        if record.fault and record.fault.kind in ANSWERS:
            record.kind = "fault"
            return ANSWERS[record.fault.kind]
        if self.asks(seen):
            record.kind = "summary"
            said = self.summary(seen)
            return Answer(text=said) if isinstance(said, str) else said
        if not isinstance(self.script, Script):
            return self.script(seen)
        record.conversation = self.script.token_of(seen)
        return self.script.answer(seen)

    def _limited(self, answer: Answer, seen: Seen, room: int | None) -> Answer:
        """Cut an answer where the output limit or the window ends it."""
        if room is not None:
            keep = min(room, count_text(answer.text) // 2)
            return replace(answer, text=_first(answer.text, keep), calls=(), stop="window")
        if seen.max_output is not None and count_text(answer.text) > seen.max_output:
            return replace(answer, text=_first(answer.text, seen.max_output), calls=(), stop="length")
        return answer

    def _usage(self, record: Record, seen: Seen, answer: Answer) -> Usage:
        reasoning = count_text(answer.thinking)
        output = count_text(answer.text) + sum(PER_CALL + count_text(call.name + call.text) for call in answer.calls)
        cached, written = (0, 0)
        if record.kind == "step":
            cached, written = self._tracker.see(seen, record.conversation, record.number)
        factor = self.estimate_factor
        if self.truncates and record.prompt + (seen.max_output or 0) > self.window:
            return Usage(self._truncated(seen), output + reasoning, reasoning=reasoning)
        return Usage(record.prompt, output + reasoning, int(cached * factor), int(written * factor), reasoning)

    def _truncated(self, seen: Seen) -> int:
        """Return the tokens left when the oldest messages are dropped until the rest fits the window."""
        room = (
            self.window - (seen.max_output or 0) - int(count_head(seen.system, seen.raw_tools) * self.estimate_factor)
        )
        left = 0
        for item in reversed(seen.items):
            size = int(count_item(item) * self.estimate_factor)
            if left + size > room:
                break
            left += size
        return self.window - (seen.max_output or 0) - room + left

    def _respond(self, record: Record, seen: Seen) -> Response:
        dialect, fault = DIALECTS[record.format], record.fault
        arguments = (record.answer, seen, record.usage, record.number, record.body)
        frames = list(dialect.events(*arguments)) if record.stream else []
        media = EVENTS if record.stream else "application/json"
        body = b"".join(frames) if record.stream else json.dumps(dialect.whole(*arguments)).encode()
        record.size, record.frames = len(body), tuple(frames)
        if fault and fault.kind == "cut":
            return Cut(body, fault.at, media_type=media)
        if fault and fault.kind == "garbage":
            return Response(b"data: " + GARBAGE + b"\n\n" if record.stream else GARBAGE, media_type=media)
        if fault and fault.kind == "stream-error" and record.stream:
            error = dialect.refuse(Refusal(529 if record.format == "anthropic" else 503, "overloaded", "Overloaded"))
            frames = [*frames[: len(frames) // 2], frame(error, "error" if record.format == "anthropic" else None)]
        if record.stream:
            return StreamingResponse(_each(frames), media_type=media)
        return Response(body, media_type=media)

    def _overflow(self, record: Record, refusal: Refusal, seen: Seen) -> Response:
        if record.stream and record.format == "openai-responses":
            record.refusal = refusal
            return StreamingResponse(
                _each(responses.failed(refusal, seen, record.number, record.body)), media_type=EVENTS
            )
        return self._refuse(record, refusal)

    def _refuse(self, record: Record, refusal: Refusal) -> Response:
        record.refusal, record.status = refusal, refusal.status
        if record.fault:
            record.kind = "fault"
        headers = {"retry-after": record.fault.retry_after if record.fault else "0"} if refusal.status == 429 else {}
        return JSONResponse(DIALECTS[record.format].refuse(refusal), status_code=refusal.status, headers=headers)


async def _each(frames: Iterable[bytes]) -> AsyncIterator[bytes]:
    for each in frames:
        yield each


def _first(text: str, tokens: int) -> str:
    bpe = openai.o200k_base()
    return str(bpe.decode(bpe.encode(text)[:tokens]) or "")
