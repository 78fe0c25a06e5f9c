"""Count tokens offline, once per text.

A counter has a BPE vocabulary, a factor for the model family and a cache. The cache is keyed by content: an edited text
is counted again, an equal text in another object is not. Counters of different vocabularies do not share a cache.
Reported usage changes the factor, never the cached counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any, Literal, TypeAlias

import msgspec

from kompakt.errors import UsageError
from kompakt.model.budget import Usage
from kompakt.model.json import json_text
from kompakt.model.media import MediaRule, media_tokens
from kompakt.model.messages import History, Json, Media, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult

Vocabulary: TypeAlias = Literal["o200k", "cl100k"]

MESSAGE_OVERHEAD = 3
"""Tokens around a message (OpenAI's published figure; others are close)."""

PRIMING = 3
"""Tokens that start the model's answer."""

CALL_OVERHEAD = 4
"""Tokens around a call or a result: type, id, braces."""

_CACHE_ENTRIES = 400_000
"""Counts in the cache of one counter; the older half is evicted when it is full. About 50 MB."""

_MAX_TEXT = 250_000
"""Characters of a text that is counted in one call (about 15 ms); longer texts are counted in pieces, so that the
interpreter is never blocked for long.
"""

_CUT_WINDOW = 10_000
"""Characters searched for a space to end a piece; text without one is cut anywhere."""


class Family(msgspec.Struct, frozen=True):
    """How one family of models counts, as far as is known without its own tokenizer."""

    name: str
    vocabulary: Vocabulary = "o200k"
    factor: float = 1.0
    """Tokens of this family per token of the vocabulary; 1 where the vocabulary is the model's own."""
    media: MediaRule = "openai"
    tool_prompt: int = 0
    """Tokens that the provider adds to the system prompt when tools are given."""


NEUTRAL = Family("o200k")

FAMILIES: tuple[tuple[tuple[str, ...], Family], ...] = (
    (
        ("gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "gpt-6", "chatgpt", "o1", "o3", "o4", "codex", "gpt-oss"),
        Family("openai"),
    ),
    (("gpt-4", "gpt-3.5", "gpt-35"), Family("openai-cl100k", "cl100k")),
    # Median ratio of reported prompt growth to o200k counts, 1,246 real steps of Claude Opus 4.5 and similar models.
    (("claude", "anthropic"), Family("claude", factor=1.25, media="anthropic", tool_prompt=346)),
    # Others: ratio of the published vocabulary to o200k, 3,000 texts of real agent sessions (gemma for gemini).
    (("gemini", "gemma"), Family("gemini", factor=1.14, media="gemini")),
    (("mistral", "mixtral", "codestral", "devstral", "magistral", "ministral"), Family("mistral", factor=1.12)),
    (("qwen", "qwq"), Family("qwen", factor=1.07)),
    (("deepseek",), Family("deepseek", factor=1.01)),
    (("glm",), Family("glm", factor=1.01)),
    (("llama",), Family("llama")),
    (("kimi", "moonshot"), Family("kimi")),
)


def family_of(model: str | None) -> Family:
    """Return the family of a model by its name; unknown models count in o200k without a factor."""
    if not model:
        return NEUTRAL
    name = model.lower().rsplit("/", 1)[-1]
    for prefixes, family in FAMILIES:
        if any(name.startswith(prefix) or f".{prefix}" in name or f"-{prefix}-" in name for prefix in prefixes):
            return family
    return NEUTRAL


@cache
def _loaded(name: Vocabulary) -> Any:
    """Load a vocabulary, which is part of its wheel."""
    from rs_bpe.bpe import openai  # late: takes 70 ms, which `import kompakt` must not

    return openai.o200k_base() if name == "o200k" else openai.cl100k_base()


@cache
def vocabulary(name: Vocabulary) -> Callable[[str], int]:
    """Return the counting function of a vocabulary."""
    return _loaded(name).count


@cache
def _bounded(name: Vocabulary) -> Callable[[str, int], int | None]:
    """Return a counting function that stops when a text has more tokens than a limit."""
    return _loaded(name).count_till_limit


def pieces(text: str, most: int) -> Iterator[str]:
    """Cut a text before spaces that follow a word, where the counts of both sides add up to the count of the whole.

    A vocabulary splits a text by a pattern before it counts. In both patterns a space never continues a token.
    """
    start = 0
    while len(text) - start > most:
        end = start + most
        cut = _last_cut(text, max(start + 1, end - _CUT_WINDOW), end + 1)
        if cut > 0:
            end = cut
        yield text[start:end]
        start = end
    yield text[start:]


def _last_cut(text: str, start: int, end: int) -> int:
    """Return the index of the last space in a range that follows a word; -1 when there is none."""
    cut = text.rfind(" ", start, end)
    while cut > 0 and text[cut - 1].isspace():
        cut = text.rfind(" ", start, cut)
    return cut


class Counter:
    """Counts texts, parts, messages and whole requests for one family of models."""

    __slots__ = ("_adds_up", "_cache", "_count", "_vocabulary", "factor", "family")

    def __init__(self, family: Family = NEUTRAL, *, count: Callable[[str], int] | None = None) -> None:
        self.family = family
        self.factor = family.factor
        self._count = count
        self._adds_up = count is None
        """Whether the counts of pieces add up to the count of the whole; unknown for a caller's function."""
        self._vocabulary = family.vocabulary if count is None else _function_name(count)
        self._cache: dict[int, int] = {}

    @classmethod
    def for_model(cls, model: str) -> Counter:
        """Create a counter for the family of a model, with its own factor."""
        return cls(family_of(model))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without the cache, whose keys are only valid in this process; the vocabulary is loaded again."""
        return _restored, (self.family, None if self._adds_up else self._count, self.factor)

    @property
    def name(self) -> str:
        """Return the vocabulary and factor, so that stored counts of different counters can be distinguished."""
        return f"{self._vocabulary}*{self.factor:.4f}"

    def own(self) -> Counter:
        """Return a counter with its own factor that shares the cache."""
        counter = Counter(self.family, count=self._count)
        counter._vocabulary, counter._cache, counter.factor = self._vocabulary, self._cache, self.factor
        counter._adds_up = self._adds_up
        return counter

    def calibrate(self, reported: Usage, counted: int, *, weight: float = 0.2) -> None:
        """Move the factor towards the usage that a provider reported for a prompt counted here.

        Growth of a prompt is the best input: parts that the caller did not send cancel out. A report that differs by
        more than a factor of four is about another prompt and is ignored.
        """
        if counted <= 0 or reported.prompt <= 0:
            return
        observed = self.factor * reported.prompt / counted
        if 0.25 <= observed / self.family.factor <= 4:
            self.factor += weight * (observed - self.factor)

    def text(self, text: str) -> int:
        """Count a text in tokens of the vocabulary, without the family's factor."""
        # The key is a 64-bit hash and the length: the text itself would stay in memory.
        key = hash(text) << 32 | len(text)
        found = self._cache.get(key)
        return self._keep(key, self._cold(text)) if found is None else found

    def tokens(self, text: str) -> int:
        """Count a text in tokens of the family."""
        key = hash(text) << 32 | len(text)
        found = self._cache.get(key)
        if found is None:
            found = self._keep(key, self._cold(text))
        return found if self.factor == 1.0 else round(found * self.factor)

    def longer(self, text: str, end: str) -> int:
        """Count a text and its continuation; if the text is in the cache, only its last word is counted again."""
        whole = f"{text}{end}"
        cut = _last_cut(text, 0, len(text))
        if cut <= 0 or not self._adds_up:
            return self.text(whole)
        tokens = self.text(text) - self.text(text[cut:]) + self.text(whole[cut:])
        return self._keep(hash(whole) << 32 | len(whole), tokens)

    def fits(self, text: str, most: int) -> bool:
        """Return whether a text has at most this many tokens; a longer text is not counted to its end."""
        if most < 0:
            return False
        found = self._cache.get(hash(text) << 32 | len(text))
        if found is None:
            found = self._unless_over(int((most + 1) / self.factor) + 1, text)
        return found is not None and self.scaled(found) <= most

    def _unless_over(self, most: int, text: str) -> int | None:
        """Count an uncached text; ``None`` where it has more tokens of the vocabulary than the limit."""
        if not self._adds_up:
            return self.text(text)
        try:
            found = _bounded(self.family.vocabulary)(text, most)
        except UnicodeEncodeError:
            return self.text(text)
        return None if found is None else self._keep(hash(text) << 32 | len(text), found)

    def _keep(self, key: int, tokens: int) -> int:
        if len(self._cache) >= _CACHE_ENTRIES:
            every = self._cache.copy()  # one step, because other threads count too
            self._cache = dict(islice(every.items(), _CACHE_ENTRIES // 2, None))
        self._cache[key] = tokens
        return tokens

    def _cold(self, text: str) -> int:
        count = self._count
        if count is None:
            count = self._count = vocabulary(self.family.vocabulary)
        try:
            if len(text) <= _MAX_TEXT:
                return count(text)
            return sum(map(count, pieces(text, _MAX_TEXT)))
        except UnicodeEncodeError:  # lone surrogates: providers see replacement characters
            return count(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    def value(self, value: Json) -> int:
        """Count a JSON value as compact text."""
        return 0 if value is None else self.text(value if type(value) is str else json_text(value))

    def scaled(self, tokens: int) -> int:
        """Convert tokens of the vocabulary to tokens of the family."""
        return tokens if self.factor == 1.0 else round(tokens * self.factor)

    def part(self, part: Part) -> int:
        """Count one part for this family."""
        if type(part) is Text:
            return self.tokens(part.text)
        if type(part) is ToolResult:
            tokens = self.text(part.output) + CALL_OVERHEAD
            media = sum(media_tokens(item, self.family.media) for item in part.media) if part.media else 0
            return (tokens if self.factor == 1.0 else round(tokens * self.factor)) + media
        if type(part) is ToolCall:
            given = part.input
            tokens = (
                CALL_OVERHEAD + self.text(part.name) + (self.text(given) if type(given) is str else self.value(given))
            )
            return tokens if self.factor == 1.0 else round(tokens * self.factor)
        if isinstance(part, Media):
            return media_tokens(part, self.family.media)
        if isinstance(part, Reasoning):
            # A redacted block is billed as the hidden thinking; only the length of its blob is known.
            return self.scaled(self.text(part.text) if part.text else len(part.blob or "") // 4)
        return self.scaled(self.value(part.raw)) if isinstance(part, Opaque) else 0

    def message(self, message: Message) -> int:
        """Count a message with its overhead."""
        tokens = MESSAGE_OVERHEAD
        for part in message.parts:
            tokens += self.part(part)
        return tokens


def _restored(family: Family, count: Callable[[str], int] | None, factor: float) -> Counter:
    counter = Counter(family, count=count)
    counter.factor = factor
    return counter


@cache
def _shared(family: Family) -> Counter:
    return Counter(family)


def counter_for(model: str | None) -> Counter:
    """Return the counter of a model; models of one family share it and its cache.

    Raises:
        UsageError: the model is not a string.
    """
    if model is not None and not isinstance(model, str):  # type: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"model={model!r} is not a model name; pass a string")
    return _shared(family_of(model))


Tokenizer: TypeAlias = Counter | Callable[[str], int]
"""A counter, or a function that counts the tokens of a text."""


def counter_of(tokenizer: Tokenizer | None, model: str | None) -> Counter:
    """Return the counter of a tokenizer; by default that of the model.

    The counts of a function are used without the factor of the model family.
    """
    if tokenizer is None:
        return counter_for(model)
    if isinstance(tokenizer, Counter):
        return tokenizer
    return Counter(msgspec.structs.replace(family_of(model), factor=1.0), count=tokenizer)


def _function_name(count: Callable[[str], int]) -> str:
    """Return a name of a function for stored counts; a function without a stable name gets its id."""
    name = getattr(count, "__qualname__", None)
    if name is None or "<" in name:
        return f"{name or type(count).__qualname__}@{id(count):x}"
    return f"{count.__module__}.{name}"


class TokenCount(msgspec.Struct, frozen=True):
    """The tokens of one request, and how they are distributed."""

    total: int
    by_role: dict[str, int]
    by_kind: dict[str, int]
    by_tool: dict[str, int]
    """Calls and results of each tool together."""

    messages: int
    counter: str


def count(history: History, counter: Counter) -> TokenCount:
    """Count a whole request: messages, system, tools, media and overhead."""
    by_role: dict[str, int] = {}
    by_kind: dict[str, int] = {}
    by_tool: dict[str, int] = {}
    names = {call.id: call.name for message in history for call in message.calls}
    for message in (*history.system, *history):
        for part in message.parts:
            tokens = counter.part(part)
            _add(by_role, "tool" if type(part) is ToolResult else message.role, tokens)
            _add(by_kind, kind_of(part), tokens)
            tool = _tool_of(part, names)
            if tool is not None:
                _add(by_tool, tool, tokens)
        _add(by_role, message.role, MESSAGE_OVERHEAD)
        _add(by_kind, "framing", MESSAGE_OVERHEAD)
    if history.tools:
        schemas = tool_tokens(history.tools, counter)
        _add(by_role, "tools", schemas)
        _add(by_kind, "tool schema", schemas)
    _add(by_role, "assistant", PRIMING)
    _add(by_kind, "framing", PRIMING)
    return TokenCount(sum(by_role.values()), by_role, by_kind, by_tool, len(history), counter.name)


def tool_tokens(tools: Iterable[Json], counter: Counter) -> int:
    """Count tool definitions and the prompt that a provider adds for them."""
    return counter.scaled(sum(counter.value(tool) for tool in tools)) + counter.family.tool_prompt


def kind_of(part: Part) -> str:
    """Return the kind of a part as it is called in reports."""
    names: dict[type, str] = {
        Text: "text",
        Media: "media",
        Reasoning: "reasoning",
        ToolCall: "tool call",
        ToolResult: "tool result",
    }
    return names.get(type(part), "other")


def _tool_of(part: Part, names: dict[str, str]) -> str | None:
    if type(part) is ToolCall:
        return part.name
    if type(part) is ToolResult:
        return part.name or names.get(part.call_id, "unknown")
    return None


def _add(table: dict[str, int], key: str, tokens: int) -> None:
    table[key] = table.get(key, 0) + tokens
