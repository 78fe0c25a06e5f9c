"""Recall over one history: search by words, restore by reference.

References and index are built on first use and grow with the history, so a query costs the new messages and its own
terms. A history too large to index within seconds is scanned instead: substrings of the query select the blocks of text
that match best, and only these are indexed. The same history and query always give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from kompakt.engine.ledger.extract.user_words import binding
from kompakt.engine.recall.answer import AnswerPassage, Recalled, answer, label
from kompakt.engine.recall.index import Index
from kompakt.engine.recall.passages import Passage, exact, is_by_user, is_own, is_recall, spoken, subject_of
from kompakt.engine.recall.restore import Reference, fetch, fetch_with_results, read_query, text_lines
from kompakt.engine.recall.search import search
from kompakt.engine.recall.terms import asks_for_rules, roots
from kompakt.errors import UsageError
from kompakt.model.messages import Message, Text, ToolCall, ToolResult
from kompakt.model.references import References
from kompakt.model.tokens import Counter

DEFAULT_TOKENS = 1_000
"""Size of an answer: a dozen passages, and still cheap to ask for."""

INDEX_CHARS = 4_000_000
"""Characters of the largest history that is indexed whole: about a second of work."""

SCAN_CHARS = 1_500_000
"""Characters of the best blocks that are indexed for one query on a larger history."""

BLOCK_CHARS = 8_000
"""Characters of a block: small enough that two words in it are probably related."""

_MAX_ABOUT = 2_000
"""Longest call, in characters, whose words count for its result. A longer one contains content, not only a name."""

_MAX_CALLS, _MAX_SUBJECTS = 50, 5
"""Latest calls that are read, and subjects that are suggested, if a search finds nothing."""


class Memory:
    """Searches and restores the original messages of a conversation."""

    __slots__ = (
        "_calls",
        "_chars",
        "_counter",
        "_given",
        "_index",
        "_measured",
        "_messages",
        "_references",
        "_results",
    )

    def __init__(self, messages: Iterable[Message] = (), *, counter: Counter, references: Sequence[str] = ()) -> None:
        self._messages: list[Message] = list(messages)
        self._counter = counter
        self._given = tuple(references)
        self._references = References(given=self._given)
        self._index: Index | None = None
        self._calls: dict[str, ToolCall] = {}
        self._results: dict[str, tuple[int, int]] = {}
        """Message and part of the result of each call."""
        self._measured = 0
        self._chars = 0

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the messages; references and index are built again when they are needed."""
        return _restored, (self._messages, self._counter, self._given)

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Message) -> None:
        """Append the next message."""
        self._messages.append(message)

    def recall(self, asked: str, *, tokens: int | None = DEFAULT_TOKENS) -> Recalled:
        """Return what a reference names, else what a search finds, in at most ``tokens`` tokens.

        ``REFERENCE "words"`` searches inside what the reference names.

        Raises:
            UsageError: ``asked`` is not a string, or ``tokens`` is not positive.
        """
        if not isinstance(asked, str):  # type: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"recall takes words or a reference as text, not {asked!r}")
        if tokens is not None and (type(tokens) is not int or tokens < 1):
            raise UsageError(f"tokens={tokens!r} leaves no room for an answer; give a positive number, or None for all")
        found = self.fetch(asked, tokens=tokens)
        return self.search(asked, tokens=tokens) if found is None else found

    def fetch(self, reference: str, *, tokens: int | None = DEFAULT_TOKENS) -> Recalled | None:
        """Return what a reference names; ``None`` if the text is not a reference, or no message has it.

        With a token limit, the reference of a call restores the call and its result. Without a limit, it restores
        exactly what it names, byte for byte.
        """
        read, words = read_query(reference)
        place = None if read is None else self._place(read)
        if read is None or place is None:
            return None
        if words is not None:
            return self._search_inside(read, place, words, tokens)
        message = self._messages[place]
        results = self._results_of(message, read.part)
        if not results or tokens is None:
            return fetch(message, read, tokens=tokens, counter=self._counter)
        if read.first is not None and len(results) == 1 and len(text_lines(message, read)) <= 1:
            result, own = results[0]  # lines of a short call are lines of its output
            return fetch(result, own._replace(first=read.first, last=read.last), tokens=tokens, counter=self._counter)
        if read.first is not None:
            return fetch(message, read, tokens=tokens, counter=self._counter)
        return fetch_with_results(message, read, results, tokens=tokens, counter=self._counter)

    def _results_of(self, message: Message, part: int | None) -> list[tuple[Message, Reference]]:
        """List the results of the calls in a message, or in one of its parts."""
        self._measure()
        parts = message.parts if part is None else message.parts[part : part + 1]
        calls = [one for one in parts if type(one) is ToolCall]
        found: list[tuple[Message, Reference]] = []
        for call in calls:
            place = self._results.get(call.id)
            if place is not None and self._messages[place[0]] is not message:
                other = self._messages[place[0]]
                number = place[1] if len(other.parts) > 1 else None
                found.append((other, Reference(self._references.names[place[0]], number)))
        return found

    def lacks(self, asked: str) -> bool:
        """Return whether a text is a reference that names no message of this history."""
        read, _ = read_query(asked) if isinstance(asked, str) else (None, None)  # type: ignore[reportUnnecessaryIsInstance]
        return read is not None and self._place(read) is None

    def search(self, query: str, *, tokens: int | None = DEFAULT_TOKENS) -> Recalled:
        """Return the passages that match a query best."""
        self._measure()
        self._name()
        index = self._index_for(query)
        found = answer(
            search(index, query),
            lambda *one: self._passage(index, *one),
            tokens=tokens,
            counter=self._counter,
            matches=index.places_with_all(query),
            is_partial=index is not self._index,
        )
        if found:
            return found
        reason = f"Nothing found for {_quoted(query)}; ask with other words, or with a reference as printed"
        calls = [call for call in list(self._calls.values())[:-_MAX_CALLS:-1] if not is_recall(call, {})]
        subjects = dict.fromkeys(filter(None, map(subject_of, calls)))
        recent = f". Recent files and commands: {'; '.join(list(subjects)[:_MAX_SUBJECTS])}" if subjects else ""
        found = self._nothing(reason + recent, tokens)
        return found if found.text else self._nothing(reason, tokens)

    def _search_inside(self, read: Reference, place: int, words: str, tokens: int | None) -> Recalled:
        """Return the passages of one message, and of the results of its calls, that match words."""
        message = self._messages[place]
        results = [own for _, own in self._results_of(message, read.part)]
        sources = [(place, read.part), *((self._references.find(own.message), own.part) for own in results)]
        index = Index(calls=self._calls)
        for number, part in sources:
            if number is not None:
                index.add(self._messages[number], number, within=partial(_is_in_part, part))
        ranked = search(index, words)
        candidates = ranked or [(at, 1.0) for at in range(len(index))]  # punctuation has no terms
        literal = [one for one in candidates if words.lower() in index.text(one[0]).lower()]
        found = answer(literal or ranked, lambda *one: self._passage(index, *one), tokens=tokens, counter=self._counter)
        return found if found else self._nothing(f"{read.name} does not contain {_quoted(words)}", tokens)

    # --- index ----------------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Record size, calls and results of new messages."""
        for number in range(self._measured, len(self._messages)):
            for place, part in enumerate(self._messages[number].parts):
                if type(part) is ToolCall:
                    self._calls[part.id] = part
                elif type(part) is ToolResult:
                    self._results[part.call_id] = number, place
                self._chars += len(part.output) if type(part) is ToolResult else len(getattr(part, "text", ""))
        self._measured = len(self._messages)

    def _index_for(self, query: str) -> Index:
        """Return the index of the whole history, or of the blocks that match a query where that would take too long."""
        if self._chars > INDEX_CHARS:
            return self._scanned(query)
        if self._index is None:
            self._index = Index()
        for message in self._messages[self._index.messages :]:
            self._index.add(message)
        return self._index

    def _scanned(self, query: str) -> Index:
        """Index the blocks of a large history that contain the rarest words of a query."""
        wanted = roots(query)
        blocks = list(self._blocks(wanted))
        counts = [sum(bits >> at & 1 for *_, bits in blocks) for at in range(len(wanted))]
        weights = [math.log(1 + len(blocks) / (1 + count)) for count in counts]
        scores: dict[int, float] = {}
        for *_, bits in blocks:
            if bits not in scores:
                scores[bits] = sum(weight for at, weight in enumerate(weights) if bits >> at & 1)
        best = sorted((block for block in blocks if block[3]), key=lambda block: (-scores[block[3]], -block[0]))
        chosen: dict[int, set[tuple[int, int]]] = {}
        room = SCAN_CHARS
        for number, part, start, _ in best:
            source = self._messages[number].parts[part]
            size = len(exact(source)) if type(source) is ToolCall else min(BLOCK_CHARS, len(spoken(source)) - start)
            blocks_of = range(start // BLOCK_CHARS, (start + size) // BLOCK_CHARS + 1)
            chosen.setdefault(number, set()).update((part, block) for block in blocks_of)
            room -= size
            if room <= 0:
                break
        if asks_for_rules(query):
            for number, part, block in self._demands():
                chosen.setdefault(number, set()).add((part, block))
        index = Index(calls=self._calls)
        for number in sorted(chosen):
            index.add(self._messages[number], number, within=partial(_is_in_blocks, chosen[number]))
        return index

    def _demands(self) -> Iterator[tuple[int, int, int]]:
        """Iterate over the blocks with demands of the user: message, part, block."""
        for number, message in enumerate(self._messages):
            for place, part in enumerate(message.parts):
                text = part.text if type(part) is Text and is_by_user(message, part) else ""
                for start in range(0, len(text), BLOCK_CHARS):
                    if binding(text[start : start + BLOCK_CHARS]):
                        yield number, place, start // BLOCK_CHARS

    def _blocks(self, wanted: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
        """Iterate over the blocks of the history: message, part, start, and which substrings occur, as bits.

        A call is one block, read as its JSON text: decoding every call would take longer than the scan.
        """
        flags = [(1 << at, root) for at, root in enumerate(wanted)]
        for number, message in enumerate(self._messages):
            for place, part in enumerate(message.parts):
                if type(part) is ToolCall:
                    yield number, place, 0, _bits(flags, exact(part).lower())
                    continue
                text = "" if is_own(message, part) else spoken(part)
                call = self._calls.get(part.call_id) if type(part) is ToolResult else None
                about = exact(call) if call is not None else ""
                known = _bits(flags, about.lower()) if 0 < len(about) < _MAX_ABOUT else 0
                for start in range(0, len(text), BLOCK_CHARS):
                    yield number, place, start, known | _bits(flags, text[start : start + BLOCK_CHARS].lower())

    def _name(self) -> None:
        for message in self._messages[len(self._references.names) :]:
            self._references.add(message)

    def _place(self, read: Reference) -> int | None:
        self._name()
        return self._references.find(read.message)

    def _passage(self, index: Index, place: int, score: float) -> AnswerPassage:
        passage = index.passages[place]
        message = self._messages[passage.message]
        part = message.parts[passage.part]
        alone = len(message.parts) == 1
        name = self._references.names[passage.message]
        reference = name if alone else f"{name}.{passage.part}"
        if passage.first_line:
            reference += f":{passage.first_line}-{passage.last_line}"
        call = self._calls.get(part.call_id) if type(part) is ToolResult else None
        return AnswerPassage(
            place=place,
            score=score,
            message=passage.message,
            reference=reference,
            label=label(message, part, call.name if call else None, subject_of(call) if call else ""),
            text=index.text(place),
            whole=alone and not passage.start and not passage.first_line,
            named=index.is_named(place),
        )

    def _nothing(self, reason: str, tokens: int | None) -> Recalled:
        text = f"[kompakt] {reason}."
        size = self._counter.tokens(text)
        return Recalled(text=text, tokens=size) if tokens is None or size <= tokens else Recalled(text="")


def _bits(flags: Sequence[tuple[int, str]], text: str) -> int:
    bits = 0
    for flag, root in flags:
        if root in text:
            bits |= flag
    return bits


def _is_in_part(part: int | None, passage: Passage) -> bool:
    return part is None or passage.part == part


def _is_in_blocks(blocks: set[tuple[int, int]], passage: Passage) -> bool:
    first, last = passage.start // BLOCK_CHARS, (passage.end - 1) // BLOCK_CHARS
    return any((passage.part, block) in blocks for block in range(first, last + 1))


def _quoted(query: str) -> str:
    return repr(" ".join(query.split())[:60])


def _restored(messages: list[Message], counter: Counter, references: tuple[str, ...]) -> Memory:
    return Memory(messages, counter=counter, references=references)
