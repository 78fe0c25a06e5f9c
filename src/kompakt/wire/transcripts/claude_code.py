"""Claude Code session files: one record a content block, gathered into the messages that were sent.

One invariant: an assistant id that does not change is one assistant message, however many records and results lie
between its first block and its last; the results of all its calls stand in the one user message behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from kompakt.model.messages import Json, JsonObject
from kompakt.model.pairs import Pairing
from kompakt.wire.transcripts.transcript import Lines, Skipped, Transcript, objects

FORMAT = "anthropic"

SYNTHETIC_MODEL = "<synthetic>"
"""The model of messages that Claude Code wrote itself: interruptions, API errors. No provider was asked."""

_MARKS = {
    "summary": "leafUuid",
    "file-history-snapshot": "snapshot",
    "queue-operation": "operation",
    "progress": "sessionId",
    "system": "sessionId",
    "pr-link": "sessionId",
    "attachment": "sessionId",
}
"""Records without a message, each with a field that tells it from other JSON lines."""


def wrote(record: JsonObject) -> bool:
    """Tell whether Claude Code writes records like this."""
    kind = record.get("type")
    if kind in ("user", "assistant"):
        message = record.get("message")
        return isinstance(message, dict) and "content" in message and ("uuid" in record or "sessionId" in record)
    return isinstance(kind, str) and kind in _MARKS and _MARKS[kind] in record


def read(lines: Lines) -> Transcript:
    """Read the records of a session file; sub-agents come apart."""
    chains = _Chains()
    skipped = list(lines.skipped)
    left_out: Counter[str] = Counter()
    seen: dict[str, JsonObject] = {}
    for line in lines.lines:
        record = line.record
        if record.get("type") not in ("user", "assistant"):
            left_out[str(record.get("type"))] += 1
            continue
        fault = _fault(record, seen)
        if fault is None:
            chains.of(record).add(record)
        else:
            skipped.append(Skipped(line.number, fault))
    main, sidechains = chains.sorted()
    return msgspec.structs.replace(
        main.finish(),
        sidechains=tuple(chain.finish() for chain in sidechains),
        skipped=tuple(sorted(skipped, key=_line_number)),
        mended=lines.mended,
        left_out=dict(left_out),
        records=len(lines.lines),
    )


def _line_number(skipped: Skipped) -> int:
    return skipped.line


def _fault(record: JsonObject, seen: dict[str, JsonObject]) -> str | None:
    """Say why a record cannot be used; records that were used are remembered by their uuid."""
    message: Any = record.get("message")
    if not isinstance(message, dict):
        return f"a {record['type']} record without a message"
    content: Any = cast("JsonObject", message).get("content")
    if not isinstance(content, str | list):
        return f"a {record['type']} message whose content is neither text nor blocks"
    if isinstance(content, list) and len(objects(cast("Any", content))) != len(cast("list[Any]", content)):
        return f"a {record['type']} message with a content block that is no object"
    if content == [] and record["type"] == "user":
        return "a user message without content"
    uuid = record.get("uuid")
    if isinstance(uuid, str) and seen.setdefault(uuid, record) is not record and seen[uuid] == record:
        return f"the same record once more, uuid {uuid}"
    return None


# --- chains ------------------------------------------------------------------------------------------------------


class _Chains:
    """Tells the conversations of a file apart: the main one, and one for each sub-agent."""

    def __init__(self) -> None:
        self.main = _Conversation()
        self.agents: dict[str, _Conversation] = {}
        self._roots: dict[str, str] = {}

    def of(self, record: JsonObject) -> _Conversation:
        """Return the conversation that a record belongs to."""
        if not record.get("isSidechain"):
            return self.main
        uuid, parent, agent = record.get("uuid"), record.get("parentUuid"), record.get("agentId")
        key = f"agent {agent}" if agent else self._roots.get(str(parent)) or str(uuid or parent)
        if uuid:
            self._roots[str(uuid)] = key
        return self.agents.setdefault(key, _Conversation())

    def sorted(self) -> tuple[_Conversation, list[_Conversation]]:
        """Return the main conversation and the others; the file of a lone sub-agent is its own main one."""
        agents = list(self.agents.values())
        if self.main.drafts or len(agents) != 1:
            return self.main, agents
        return agents[0], []


class _Draft:
    """A wire message in the making: results, then everything else in order."""

    __slots__ = ("answer", "content", "id", "results", "role", "summary", "usage", "words")

    def __init__(self, role: str, *, id: str | None = None, summary: bool = False) -> None:
        self.role = role
        self.id = id
        self.summary = summary
        self.results: list[Json] = []
        self.content: list[Json] = []
        self.words: list[str] = []
        """What came as plain strings; one alone is sent as it came."""
        self.usage: JsonObject | None = None
        self.answer: _Draft | None = None
        """The user message that holds the results of this one's calls."""

    def add(self, content: Json) -> None:
        """Append content that is no result of a client's tool."""
        if isinstance(content, str):
            self.words.append(content)
            content = [{"type": "text", "text": content}]
        self.content.extend(content)

    def absorb(self, other: _Draft) -> None:
        """Take over what another message holds."""
        self.results.extend(other.results)
        self.content.extend(other.content)
        self.words.extend(other.words)

    def render(self) -> JsonObject:
        """Write the wire message: a role and content, nothing else."""
        blocks = [*self.results, *self.content]
        plain = len(blocks) == 1 and len(self.words) == 1
        return {"role": self.role, "content": self.words[0] if plain else blocks}


class _Conversation:
    """Gathers the records of one conversation into messages."""

    def __init__(self) -> None:
        self.drafts: list[_Draft] = []
        self._pairing: Pairing[_Draft] = Pairing()
        self._assistant: _Draft | None = None
        self._behind = 0
        """Where the messages behind the latest assistant message begin."""
        self._model: str | None = None

    def add(self, record: JsonObject) -> None:
        """Take the next record."""
        message: JsonObject = record["message"]
        if record["type"] == "assistant":
            self._add_assistant(message)
        else:
            self._add_user(message["content"], summary=bool(record.get("isCompactSummary")))

    def finish(self) -> Transcript:
        """Return what was gathered."""
        drafts = list(self._in_order())
        body: JsonObject = {"model": self._model} if self._model else {}
        body["messages"] = [draft.render() for draft in drafts]
        return Transcript(
            kind="claude-code",
            format=FORMAT,
            body=body,
            ids=tuple(draft.id for draft in drafts),
            summaries=frozenset(index for index, draft in enumerate(drafts) if draft.summary),
            usages=tuple((index, draft.usage) for index, draft in enumerate(drafts) if draft.usage is not None),
        )

    def _in_order(self) -> Iterator[_Draft]:
        for draft in self.drafts:
            yield draft
            if draft.answer is not None:
                yield draft.answer

    def _add_assistant(self, message: JsonObject) -> None:
        message_id, model, usage = message.get("id"), message.get("model"), message.get("usage")
        draft = self._assistant
        if draft is None or draft.id is None or draft.id != message_id:
            draft = _Draft("assistant", id=message_id if isinstance(message_id, str) else None)
            self._pairing.begin_run()
            self.drafts.append(draft)
            self._assistant, self._behind = draft, len(self.drafts)
        draft.add(message["content"])
        for block in objects(message["content"]):
            if block.get("type") == "tool_use":
                self._pairing.expect(str(block.get("id")), draft)
        if isinstance(model, str) and model != SYNTHETIC_MODEL:
            self._model = model
            draft.usage = usage if isinstance(usage, dict) else draft.usage

    def _add_user(self, content: Json, *, summary: bool) -> None:
        if summary:
            draft = _Draft("user", summary=True)
            draft.add(content)
            self.drafts.append(draft)
            return
        rest: list[Json] = []
        for block in objects(content):
            if block.get("type") == "tool_result":
                self._add_result(block)
            else:
                rest.append(block)
        if isinstance(content, str) or rest:
            self._add_words(content if isinstance(content, str) else rest)

    def _add_result(self, block: JsonObject) -> None:
        """Put a result into the message behind its call; without a call it stays where it came."""
        call_id = str(block.get("tool_use_id"))
        caller = self._pairing.answer(call_id) or self._pairing.latest(call_id)
        if caller is not None:
            self._answer(caller).results.append(block)
            return
        last = self._last()
        if last is None or last.role != "user" or last.summary or not last.results:
            last = _Draft("user")
            self.drafts.append(last)
        last.results.append(block)

    def _answer(self, caller: _Draft) -> _Draft:
        """Return the message for the results of a caller; user messages that came before them move into it."""
        if caller.answer is not None:
            return caller.answer
        caller.answer = _Draft("user")
        while caller is self._assistant and len(self.drafts) > self._behind and not self.drafts[self._behind].summary:
            caller.answer.absorb(self.drafts.pop(self._behind))
        return caller.answer

    def _add_words(self, content: Json) -> None:
        """Put what is no result behind the results it follows, else into a message of its own."""
        last = self._last()
        if last is None or not last.results or last.summary:
            last = _Draft("user")
            self.drafts.append(last)
        last.add(content)

    def _last(self) -> _Draft | None:
        """Return the message that stands last so far."""
        if not self.drafts:
            return None
        last = self.drafts[-1]
        return last if last.answer is None else last.answer
