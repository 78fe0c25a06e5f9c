"""Count tokens offline, once for each text.

A counter is a BPE vocabulary, a factor for the model family and the cache of what it has counted. The cache is keyed
by content, so an edited text is counted anew and an equal text in another object is not; a counter has a cache of its
own, so another vocabulary never sees these counts. Reported usage moves the factor and never the cached counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any, Literal, TypeAlias

import msgspec

from kompakt.errors import InputError, UsageError
from kompakt.model.budget import Usage
from kompakt.model.media import MediaRule, media_tokens
from kompakt.model.messages import History, Json, Media, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult

Vocabulary: TypeAlias = Literal["o200k", "cl100k"]

MESSAGE_OVERHEAD = 3
"""Tokens that frame a message (OpenAI's published figure; others are close)."""

PRIMING = 3
"""Tokens that begin the model's answer."""

CALL_OVERHEAD = 4
"""Tokens that frame a call or a result: its type, its id, its braces."""

_CACHE_ENTRIES = 400_000
"""Counts kept by one counter; the oldest half goes when it is full. About 50 MB."""

_MAX_TEXT = 250_000
"""Longer texts are counted piece by piece, so that one call never holds the interpreter for long: about 15 ms."""

_CUT_WINDOW = 10_000
"""Characters in which a piece's end is looked for; text without a space in so many is cut where it is."""


class Family(msgspec.Struct, frozen=True):
    """How one family of models counts, as far as it is known without the vendor's tokenizer."""

    name: str
    vocabulary: Vocabulary = "o200k"
    factor: float = 1.0
    """Tokens of this family for each token of the vocabulary; 1 where the vocabulary is the model's own."""
    media: MediaRule = "openai"
    tool_prompt: int = 0
    """Tokens a provider adds to the system prompt as soon as tools are given."""


NEUTRAL = Family("o200k")

FAMILIES: tuple[tuple[tuple[str, ...], Family], ...] = (
    (
        ("gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "gpt-6", "chatgpt", "o1", "o3", "o4", "codex", "gpt-oss"),
        Family("openai"),
    ),
    (("gpt-4", "gpt-3.5", "gpt-35"), Family("openai-cl100k", "cl100k")),
    # Median growth of reported prompts over o200k counts on 1,246 real steps of Claude Opus 4.5 and its kin.
    (("claude", "anthropic"), Family("claude", factor=1.25, media="anthropic", tool_prompt=346)),
    # The rest: the vendor's published vocabulary over o200k on 3,000 texts of real agent sessions (gemma for gemini).
    (("gemini", "gemma"), Family("gemini", factor=1.14, media="gemini")),
    (("mistral", "mixtral", "codestral", "devstral", "magistral", "ministral"), Family("mistral", factor=1.12)),
    (("qwen", "qwq"), Family("qwen", factor=1.07)),
    (("deepseek",), Family("deepseek", factor=1.01)),
    (("glm",), Family("glm", factor=1.01)),
    (("llama",), Family("llama")),
    (("kimi", "moonshot"), Family("kimi")),
)


def family_of(model: str | None) -> Family:
    """Find the family of a model by its name; an unknown one is counted in o200k as it is."""
    if not model:
        return NEUTRAL
    name = model.lower().rsplit("/", 1)[-1]
    for prefixes, family in FAMILIES:
        if any(name.startswith(prefix) or f".{prefix}" in name or f"-{prefix}-" in name for prefix in prefixes):
            return family
    return NEUTRAL


@cache
def _loaded(name: Vocabulary) -> Any:
    """Load a vocabulary, which comes inside its wheel."""
    from rs_bpe.bpe import openai  # late: 70 ms that `import kompakt` should not pay

    return openai.o200k_base() if name == "o200k" else openai.cl100k_base()


@cache
def vocabulary(name: Vocabulary) -> Callable[[str], int]:
    """Return the count of a vocabulary."""
    return _loaded(name).count


@cache
def _bounded(name: Vocabulary) -> Callable[[str, int], int | None]:
    """Return the count of a vocabulary that stops where a text has more than so many tokens."""
    return _loaded(name).count_till_limit


def pieces(text: str, most: int) -> Iterator[str]:
    """Cut a text before spaces that follow a word, where the counts of both sides add up to the count of the whole.

    A vocabulary divides a text by a pattern before it counts, and in neither pattern does a space continue anything.
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
    """Find the last space between two places that follows a word; none is -1."""
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
        """Whether counts of pieces add up to that of the whole; of somebody's own function nobody knows."""
        self._vocabulary = family.vocabulary if count is None else _function_name(count)
        self._cache: dict[int, int] = {}

    @classmethod
    def for_model(cls, model: str) -> Counter:
        """Make a counter for the family of a model, with a factor of its own."""
        return cls(family_of(model))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle what a count depends on: cache keys hold only in this process, and a vocabulary is loaded again."""
        return _restored, (self.family, None if self._adds_up else self._count, self.factor)

    @property
    def name(self) -> str:
        """Name what a count depends on, so that a stored count can be told from another counter's."""
        return f"{self._vocabulary}*{self.factor:.4f}"

    def own(self) -> Counter:
        """Return a counter with a factor of its own that shares what was counted."""
        counter = Counter(self.family, count=self._count)
        counter._vocabulary, counter._cache, counter.factor = self._vocabulary, self._cache, self.factor
        counter._adds_up = self._adds_up
        return counter

    def calibrate(self, reported: Usage, counted: int, *, weight: float = 0.2) -> None:
        """Move the factor towards what a provider reported for a prompt that was counted here.

        Growth of a prompt serves best: the part of it that was not sent by the caller cancels out. A report that
        is off by more than four times is not about the same prompt and is ignored.
        """
        if counted <= 0 or reported.prompt <= 0:
            return
        observed = self.factor * reported.prompt / counted
        if 0.25 <= observed / self.family.factor <= 4:
            self.factor += weight * (observed - self.factor)

    def text(self, text: str) -> int:
        """Count a text in tokens of the vocabulary, without the family's factor."""
        # A 64-bit keyed hash and the length stand for the content: holding the text would keep it alive.
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
        """Count a text with something behind it; where the text was counted, only its last word is counted again."""
        whole = f"{text}{end}"
        cut = _last_cut(text, 0, len(text))
        if cut <= 0 or not self._adds_up:
            return self.text(whole)
        tokens = self.text(text) - self.text(text[cut:]) + self.text(whole[cut:])
        return self._keep(hash(whole) << 32 | len(whole), tokens)

    def fits(self, text: str, most: int) -> bool:
        """Tell whether a text has at most so many tokens of the family; one that has more is not counted to its end."""
        if most < 0:
            return False
        found = self._cache.get(hash(text) << 32 | len(text))
        if found is None:
            found = self._unless_over(int((most + 1) / self.factor) + 1, text)
        return found is not None and self.scaled(found) <= most

    def _unless_over(self, most: int, text: str) -> int | None:
        """Count a text for the first time; ``None`` where it is known to have more tokens of the vocabulary."""
        if not self._adds_up:
            return self.text(text)
        try:
            found = _bounded(self.family.vocabulary)(text, most)
        except UnicodeEncodeError:
            return self.text(text)
        return None if found is None else self._keep(hash(text) << 32 | len(text), found)

    def _keep(self, key: int, tokens: int) -> int:
        if len(self._cache) >= _CACHE_ENTRIES:
            every = self._cache.copy()  # in one step: other threads count, too
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
        except UnicodeEncodeError:  # lone surrogates: not text, but providers see them as replacement characters
            return count(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    def value(self, value: Json) -> int:
        """Count a JSON value as the compact text it is sent as."""
        return 0 if value is None else self.text(value if type(value) is str else json_text(value))

    def scaled(self, tokens: int) -> int:
        """Turn tokens of the vocabulary into tokens of the family."""
        return tokens if self.factor == 1.0 else round(tokens * self.factor)

    def part(self, part: Part) -> int:
        """Count one part for this family."""
        kind = type(part)
        if kind is Text:
            return self.tokens(part.text)  # type: ignore[union-attr]
        if isinstance(part, ToolResult):
            media = sum(media_tokens(item, self.family.media) for item in part.media) if part.media else 0
            return self.scaled(self.text(part.output) + CALL_OVERHEAD) + media
        if isinstance(part, ToolCall):
            return self.scaled(self.text(part.name) + self.value(part.input) + CALL_OVERHEAD)
        if isinstance(part, Media):
            return media_tokens(part, self.family.media)
        if isinstance(part, Reasoning):
            # A redacted block is billed as the thinking it hides; its blob's length is the only measure there is.
            return self.scaled(self.text(part.text) if part.text else len(part.blob or "") // 4)
        return self.scaled(self.value(part.raw)) if isinstance(part, Opaque) else 0

    def message(self, message: Message) -> int:
        """Count a message with what frames it."""
        return MESSAGE_OVERHEAD + sum(map(self.part, message.parts))


def _restored(family: Family, count: Callable[[str], int] | None, factor: float) -> Counter:
    counter = Counter(family, count=count)
    counter.factor = factor
    return counter


def json_text(value: Json) -> str:
    """Write a JSON value compactly; what JSON cannot say is written as Python would.

    Raises:
        InputError: it is nested too deeply to be written at all.
    """
    try:
        try:
            return msgspec.json.encode(value).decode()
        except (TypeError, ValueError, UnicodeEncodeError):
            return repr(value)
    except RecursionError:
        raise InputError("a value is nested too deeply to be sent as JSON") from None


@cache
def _shared(family: Family) -> Counter:
    return Counter(family)


def counter_for(model: str | None) -> Counter:
    """Return the counter that serves a model; models of one family share it and its cache.

    Raises:
        UsageError: the model is no name.
    """
    if model is not None and not isinstance(model, str):  # type: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"model={model!r} is not the name of a model")
    return _shared(family_of(model))


Tokenizer: TypeAlias = Counter | Callable[[str], int]
"""What a caller may count with: a counter, or a function that counts the tokens of a text."""


def counter_of(tokenizer: Tokenizer | None, model: str | None) -> Counter:
    """Return the counter that a caller asks for; the model's own when the caller gives none.

    A function's counts are taken as they are: no factor of the model's family is applied to them.
    """
    if tokenizer is None:
        return counter_for(model)
    if isinstance(tokenizer, Counter):
        return tokenizer
    return Counter(msgspec.structs.replace(family_of(model), factor=1.0), count=tokenizer)


def _function_name(count: Callable[[str], int]) -> str:
    """Name a function so that its counts are not taken for another's; one without a lasting name is named by its id."""
    name = getattr(count, "__qualname__", None)
    if name is None or "<" in name:
        return f"{name or type(count).__qualname__}@{id(count):x}"
    return f"{count.__module__}.{name}"


class TokenCount(msgspec.Struct, frozen=True):
    """The tokens of one request and where they are."""

    total: int
    by_role: dict[str, int]
    by_kind: dict[str, int]
    by_tool: dict[str, int]
    """Calls and results of each tool together."""

    messages: int
    counter: str


def count(history: History, counter: Counter) -> TokenCount:
    """Count a whole request: messages, system, tools, media and what frames them."""
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
    """Count tool definitions, with the prompt that a provider adds for them."""
    return counter.scaled(sum(counter.value(tool) for tool in tools)) + counter.family.tool_prompt


def kind_of(part: Part) -> str:
    """Name the kind of a part as reports do."""
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
