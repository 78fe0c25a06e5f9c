"""Detect that a request exceeded the context window, from a provider's error, event or answer.

A retry with fewer tokens is right after an overflow and wrong after any other error. So the order is fixed: machine
readable codes, then exclusions (rate limits, timeouts, a single overlong string), then error texts. The texts are one
table for all providers, because a gateway or router may pass on the error of any upstream. Invariant: nothing here
raises, and anything that is not clearly an overflow is ``None``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

import msgspec
from msgspec import Struct

from kompakt.model.budget import Usage

NEARLY_FULL = 0.99
"""Share of the window from which an empty answer that stopped for length means that the prompt filled it."""

TRUNCATED_SHARE = 0.7
"""Reported prompt tokens divided by our estimate: below this the provider cut the prompt. Estimates are within 30 %."""

TRUNCATED_AT_WINDOW = 0.9
"""The same threshold when the reported prompt also fills the window."""

MAX_DEPTH = 6
"""Levels of nesting searched in an error body: gateways wrap the upstream error two or three times."""

MAX_TEXT = 20_000
"""Characters of one text that are searched: an echoed prompt after the message may be megabytes."""


class Overflow(Struct, frozen=True, kw_only=True):
    """A request that was too long; numbers are None where the provider states none."""

    limit: int | None = None
    actual: int | None = None
    """Tokens of the prompt as the provider counted them; with `by_bytes` neither number is tokens."""
    output: int | None = None
    """Tokens requested as output."""
    over: int | None = None
    """Tokens by which prompt and output together exceed the limit."""
    by_bytes: bool = False
    """The body was too large, not the token count: media must go, text alone may not help."""
    source: str
    """The signal that was recognised."""
    message: str = ""


class OverflowPattern(NamedTuple):
    """One known error text. Groups: limit, actual, output, over; total (prompt and output) when actual is absent."""

    source: str
    text: str
    by_bytes: bool = False

    @property
    def pattern(self) -> re.Pattern[str]:
        """Return the compiled expression, on first use; `re` caches it."""
        return re.compile(self.text, re.IGNORECASE | re.DOTALL)


def _pattern(source: str, *pattern: str, by_bytes: bool = False) -> OverflowPattern:
    # N is a number, with or without thousands separators, as long as a token count can be.
    text = "".join(pattern).replace("{N}", r"\d[\d,]{0,17}")
    return OverflowPattern(source, text, by_bytes)


PATTERNS: tuple[OverflowPattern, ...] = (
    _pattern("anthropic prompt", r"prompt is too long:\s*(?P<actual>{N}) tokens\s*>\s*(?P<limit>{N}) maximum"),
    _pattern(
        "anthropic prompt and max_tokens",
        r"input length and `?max_tokens`? exceed context limit:",
        r"\s*(?P<actual>{N})\s*\+\s*(?P<output>{N})\s*>\s*(?P<limit>{N})",
    ),
    _pattern(
        "vllm",
        r"maximum context length is (?P<limit>{N}) tokens\W+However, you requested (?P<output>{N}) output tokens "
        r"and your prompt contains (?:at least )?(?P<actual>{N}) input tokens",
    ),
    _pattern(
        "openai, openrouter, vllm, deepseek",
        r"maximum context length is (?P<limit>{N}) tokens\W+however,? you requested (?:about )?(?P<total>{N}) tokens",
        r"(?:\s*\([^()]*?(?P<output>{N}) (?:in|for) the (?:completion|output)[^()]*\))?",
    ),
    _pattern(
        "openai, azure",
        r"maximum context length is (?P<limit>{N}) tokens\W+However, your (?:messages|prompt|input) resulted in ",
        r"(?P<actual>{N}) tokens",
    ),
    _pattern(
        "sglang",
        r"maximum context length of (?P<limit>{N}) tokens\. You requested a total of (?P<total>{N}) tokens",
        r"(?:.*?(?P<output>{N}) tokens for the completion)?",
    ),
    _pattern("openai", r"maximum context length is (?P<limit>{N})(?: tokens)?"),
    _pattern("openai responses", r"input exceeds the context window of this model"),
    _pattern(
        "gemini",
        r"input token count(?: \((?P<actual>{N})\)| of (?P<actual2>{N}))? exceeds the maximum number of tokens allowed",
        r"(?: \(?(?P<limit>{N})\)?)?",
    ),
    _pattern(
        "vertex",
        r"input token count is (?P<actual>{N}) but (?:the )?model only supports up to (?P<limit>{N})",
    ),
    _pattern("bedrock", r"input is too long for requested model"),
    _pattern(
        "bedrock input tokens",
        r"too many input tokens",
        r"(?:.*?max input tokens:\s*(?P<limit>{N}),\s*request input token count:\s*(?P<actual>{N}))?",
    ),
    # Under 10,000 it is the length of a name or an id, not of a prompt.
    _pattern(
        "bedrock length",
        r"expected maxLength:\s*(?:(?P<limit>\d{5,})(?:,\s*actual:\s*(?P<actual>{N}))?|(?![\s\d]))",
        by_bytes=True,
    ),
    _pattern("vllm max_tokens", r"max_tokens must be at least 1, got -(?P<over>{N})"),
    _pattern(
        "vllm prompt",
        r"prompt \((?:total )?length (?P<actual>{N})\) is (?:too long|longer than).*?length (?:of )?(?P<limit>{N})",
    ),
    _pattern(
        "llama.cpp",
        r"request(?: \((?P<actual>{N}) tokens\))? exceeds the available context size(?: \((?P<limit>{N}) tokens\))?",
    ),
    _pattern("ollama", r"prompt too long; exceeded (?:max )?context length(?: by (?P<over>{N}) tokens?)?"),
    _pattern(
        "mistral",
        r"prompt contains (?P<actual>{N}) tokens.*?too large for model with (?P<limit>{N}) maximum context length",
    ),
    _pattern("xai", r"maximum prompt length is (?P<limit>{N}) but the request contains (?P<actual>{N}) tokens"),
    _pattern("copilot", r"prompt token count of (?P<actual>{N}) exceeds the limit of (?P<limit>{N})"),
    _pattern("minimax", r"context window exceeds limit"),
    _pattern("kimi", r"exceeded model token limit:?\s*(?P<limit>{N})(?:\s*\(requested:\s*(?P<actual>{N})\))?"),
    _pattern(
        "lm studio",
        r"greater than the context length(?:\s*\(n_keep:\s*(?P<actual>{N})\s*>=?\s*n_ctx:\s*(?P<limit>{N})\))?",
    ),
    _pattern(
        "lm studio load",
        r"keep the first (?P<actual>{N}) tokens when context .*?context length of only (?P<limit>{N}) tokens",
    ),
    _pattern(
        "together, sglang",
        r"input \((?P<actual>{N}) tokens\) is longer than the model's context length \((?P<limit>{N}) tokens\)",
    ),
    _pattern("dashscope", r"range of input length should be(?:\s*\[\s*{N}\s*,\s*(?P<limit>\d+)\s*\])?"),
    _pattern(
        "ds4",
        r"prompt has (?P<actual>{N}) tokens, but the configured context size is (?P<limit>{N}) tokens",
    ),
    _pattern("z.ai", r"prompt exceeds max length"),
    _pattern("cerebras", r"current length is (?P<actual>{N}) while limit is (?P<limit>{N})"),
    _pattern("cerebras without body", r"^\W*(?:error code:\s*)?(?:400|413)\s*(?:status code)?\s*\(no body\)"),
    _pattern(
        "cohere",
        r"total number of tokens in the prompt cannot exceed (?P<limit>{N}) - received (?P<actual>{N})",
    ),
    _pattern(
        "tgi",
        r"`inputs` tokens \+ `max_new_tokens` must be <= (?P<limit>{N})\. Given: (?P<actual>{N}) `inputs` tokens and "
        r"(?P<output>{N}) `max_new_tokens`",
    ),
    _pattern("groq", r"please reduce the length of the (?:messages or completion|input prompt|messages|prompt)\b"),
    _pattern("fireworks", r"prompt is too long:\s*(?P<actual>{N}), model maximum context length:\s*(?P<limit>{N})"),
    _pattern("anthropic on vertex", r"\bprompt is too long\b"),
    _pattern("body size", r"request exceeds the maximum (?:size|allowed number of bytes)", by_bytes=True),
    _pattern("body size", r"maximum allowed number of bytes", by_bytes=True),
    _pattern("http body size", r"(?:request entity|payload|content|request body) too large", by_bytes=True),
    _pattern(
        "code in text", r"\b(?:context_length_exceeded|exceed_context_size_error|model_context_window_exceeded)\b"
    ),
)
"""Most specific first: a pattern with numbers precedes one that matches the same text without them."""

CODES = {
    "context_length_exceeded",  # OpenAI, Groq and kin: error.code
    "exceed_context_size_error",  # llama.cpp: error.type
    "request_too_large",  # Anthropic, 32 MB: error.type
    "model_max_prompt_tokens_exceeded",  # Copilot: error.code
    "model_context_window_exceeded",  # Anthropic, Bedrock, z.ai: stop or finish reason
}
BYTE_CODES = {"request_too_large"}

EXCLUSIONS = re.compile(
    r"throttl|service unavailable|rate.?limit|too many requests|too many tokens,? please wait|too many tokens per"
    r"|tokens per (?:min|hour|day|second)|\(TPM\)|quota|resource.?exhausted|overloaded|deadline exceeded|timed? ?out"
    r"|string too long|string_above_max_length",
    re.IGNORECASE,
)
EXCLUDED_STATUS = {401, 402, 403, 404, 408, 429, 504, 529}
"""Statuses that never mean an overflow: no access, not found, timeouts, rate limits, overload."""

TOO_LARGE = 413

_TEXT_KEYS = ("message", "Message", "detail", "details", "raw", "error_message", "status_msg", "msg", "error")
_CODE_KEYS = (
    "code",
    "Code",
    "type",
    "status",
    "__type",
    "finish_reason",
    "finishReason",
    "stop_reason",
    "stopReason",
    "reason",
)
_STATUS_KEYS = ("status_code", "statusCode", "HTTPStatusCode", "http_status", "code", "status")
_NEST_KEYS = (
    *("error", "Error", "response", "body", "errors", "metadata", "detail", "details", "delta", "message"),
    *("incomplete_details", "innererror", "ResponseMetadata", "choices", "candidates", "messageStop"),
    "base_resp",
)
_EXCEPTION_FIELDS = ("status_code", "http_status", "code", "status", "type", "message", "details")


class _Evidence:
    """The content of an error, flattened: codes, statuses, texts and token counts."""

    def __init__(self, status: int | None) -> None:
        self.statuses = set[int]() if status is None else {status}
        self.codes = list[str]()
        self.texts = list[str]()
        self.counts = dict[str, int]()

    @property
    def message(self) -> str:
        return self.texts[0] if self.texts else ""


def overflow(error: object, *, status: int | None = None) -> Overflow | None:
    """Return the overflow that an error, an event or a finished answer reports; ``None`` if it reports none."""
    evidence = _Evidence(status)
    _collect(error, evidence, depth=0)
    if code := next((code for code in evidence.codes if code.lower() in CODES), None):
        return _from_code(code, evidence)
    texts = evidence.texts
    if evidence.statuses & EXCLUDED_STATUS or any(EXCLUSIONS.search(text) for text in (*texts, *evidence.codes)):
        return None
    if TOO_LARGE in evidence.statuses and not texts:
        texts = [f"{TOO_LARGE} status code (no body)"]
    if found := _match(texts):
        known, match, text = found
        return _overflow(known.source, by_bytes=known.by_bytes, numbers=_numbers(match), message=text)
    if TOO_LARGE in evidence.statuses:
        return Overflow(source="status 413", by_bytes=True, message=evidence.message)
    return None


def failure_in(text: str) -> object | None:
    """Return the error in a response with status 200; ``None`` when it is an answer.

    ``text`` is the body or the start of an event stream. Only errors of the provider count, never text of the model:
    an answer may quote any error.
    """
    text = text.lstrip("\ufeff \t\r\n")
    if text[:1] in ("{", "["):
        return _failure(_decoded(text), whole=True)
    found = (_failure(body, event=name) for name, body in _events(text))
    return next((failure for failure in found if failure is not None), None)


_ANSWER_KEYS = frozenset(["choices", "candidates", "content", "output", "usageMetadata", "promptFeedback"])


def _failure(body: object, *, event: str = "", whole: bool = False) -> object | None:
    """Return the error in one body or event; ``whole`` means that the body is complete."""
    if isinstance(body, list):  # a Gemini stream without alt=sse
        found = (_failure(one, whole=whole) for one in cast("list[object]", body))
        return next((failure for failure in found if failure is not None), None)
    if not isinstance(body, Mapping):
        return body if event == "error" else None
    fields = cast("Mapping[str, object]", body)
    kind = fields.get("type")
    if event == "error" or kind == "error":
        return fields
    if kind == "response.failed":
        return _field(fields.get("response"), "error")
    if fields.get("error"):
        return {"error": fields["error"]}
    if _field(fields.get("base_resp"), "status_code"):  # MiniMax: 0 is success
        return fields["base_resp"]
    choices = fields.get("choices")
    for choice in cast("list[object]", choices) if isinstance(choices, list) else ():
        if failure := _field(choice, "error"):  # OpenRouter
            return failure
    return fields if whole and kind is None and not _ANSWER_KEYS & fields.keys() else None


def _field(body: object, name: str) -> object | None:
    return cast("Mapping[str, object]", body).get(name) if isinstance(body, Mapping) else None


def _events(text: str) -> Iterator[tuple[str, object]]:
    """Yield the complete server-sent events of a text: name and decoded data."""
    *blocks, _ = re.split(r"\r?\n\r?\n", text + ("\n\n" if text.endswith("\n") else ""))
    for block in blocks:
        name, data = "", list[str]()
        for line in block.splitlines():
            field, _, value = line.partition(":")
            if field == "event":
                name = value.strip()
            elif field == "data":
                data.append(value.removeprefix(" "))
        content = "\n".join(data)
        yield name, _decoded(content) if content[:1] in ("{", "[") else content


def _decoded(text: str) -> object | None:
    """Decode JSON; ``None`` for other or incomplete text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def truncated(sent: int, usage: Usage, *, window: int | None = None) -> bool:
    """Return whether the provider counted clearly fewer tokens than were sent, so it must have cut the prompt."""
    if usage.prompt == 0:
        return False
    filled = bool(window) and usage.prompt >= NEARLY_FULL * (window or 0)
    return usage.prompt < sent * (TRUNCATED_AT_WINDOW if filled else TRUNCATED_SHARE)


def _from_code(code: str, evidence: _Evidence) -> Overflow:
    found = _match(evidence.texts)
    numbers: dict[str, int | None] = dict(_numbers(found[1])) if found else {}
    counted = {"limit": evidence.counts.get("n_ctx"), "actual": evidence.counts.get("n_prompt_tokens")}
    numbers.update({name: value for name, value in counted.items() if value is not None})
    message = found[2] if found else evidence.message
    return _overflow(code, by_bytes=code.lower() in BYTE_CODES, numbers=numbers, message=message)


def _match(texts: list[str]) -> tuple[OverflowPattern, re.Match[str], str] | None:
    for known in PATTERNS:
        for text in texts:
            if match := known.pattern.search(text):
                return known, match, text
    return None


def _numbers(match: re.Match[str]) -> dict[str, int | None]:
    found = {name: int(value.replace(",", "")) for name, value in match.groupdict().items() if value}
    actual = found.get("actual", found.get("actual2"))
    output = found.get("output")
    if actual is None and "total" in found:
        actual = found["total"] - (output or 0)
    return {"limit": found.get("limit"), "actual": actual, "output": output, "over": found.get("over")}


def _overflow(source: str, *, numbers: Mapping[str, int | None], message: str, by_bytes: bool = False) -> Overflow:
    limit, actual, output, over = (numbers.get(name) for name in ("limit", "actual", "output", "over"))
    if over is None and limit is not None and actual is not None and actual + (output or 0) > limit:
        over = actual + (output or 0) - limit
    return Overflow(
        limit=limit, actual=actual, output=output, over=over, by_bytes=by_bytes, source=source, message=message
    )


def _collect(error: object, evidence: _Evidence, *, depth: int) -> None:
    if error is None or depth > MAX_DEPTH:
        return
    if isinstance(error, bytes | bytearray):
        error = error.decode("utf-8", "replace")
    if isinstance(error, str):
        _collect_text(error, evidence, depth=depth)
    elif isinstance(error, Mapping):
        _collect_mapping(cast("Mapping[object, object]", error), evidence, depth=depth)
    elif isinstance(error, list | tuple):
        for item in cast("list[object]", error):
            _collect(item, evidence, depth=depth + 1)
    elif not isinstance(error, int | float):
        _collect_exception(error, evidence, depth=depth)


def _collect_text(text: str, evidence: _Evidence, *, depth: int) -> None:
    text = text.strip()
    if text[:1] in ("{", "["):
        try:
            _collect(msgspec.json.decode(text), evidence, depth=depth + 1)
            return
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            pass  # not JSON: search the text itself
    if text:
        evidence.texts.append(text[:MAX_TEXT])


def _collect_mapping(body: Mapping[object, object], evidence: _Evidence, *, depth: int) -> None:
    for key in _STATUS_KEYS:
        _collect_status(body.get(key), evidence)
    evidence.codes += [value for key in _CODE_KEYS if isinstance(value := body.get(key), str)]
    for key in ("n_ctx", "n_prompt_tokens"):
        value = body.get(key)
        if isinstance(value, int):
            evidence.counts[key] = value
    for key in _TEXT_KEYS:
        if isinstance(value := body.get(key), str):
            _collect_text(value, evidence, depth=depth)
    # Bedrock's event stream names the error by its key: {"throttlingException": {"message": …}}.
    named = [key for key in body if isinstance(key, str) and key.endswith("Exception")]
    evidence.codes += named
    for key in (*_NEST_KEYS, *named):
        if isinstance(value := body.get(key), Mapping | list):
            _collect(cast("object", value), evidence, depth=depth + 1)


def _collect_status(value: object, evidence: _Evidence) -> None:
    if isinstance(value, int) and 100 <= value < 600:
        evidence.statuses.add(value)


def _collect_exception(error: object, evidence: _Evidence, *, depth: int) -> None:
    evidence.codes.append(type(error).__name__)
    _collect(getattr(error, "body", None), evidence, depth=depth + 1)
    fields: dict[object, object] = {name: getattr(error, name, None) for name in _EXCEPTION_FIELDS}
    _collect_mapping(fields, evidence, depth=depth)
    response: object = getattr(error, "response", None)
    if isinstance(response, Mapping):
        _collect(cast("object", response), evidence, depth=depth + 1)
    elif response is not None:
        _collect_status(getattr(response, "status_code", None), evidence)
        _collect(_text_of(response), evidence, depth=depth + 1)
    if isinstance(error, BaseException):
        _collect_text(str(error), evidence, depth=depth)


def _text_of(response: object) -> str | None:
    try:
        text: object = getattr(response, "text", None)
    except RuntimeError:
        # httpx: the body of a streamed response was not read.
        return None
    return text if isinstance(text, str) else None
