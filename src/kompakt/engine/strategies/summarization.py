"""Replace old groups by a pivot: the narrative of a summarizer, if there is one, and a ledger. Linear in the groups."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kompakt.engine.context.archive import ContextGroup
from kompakt.engine.context.context import Context
from kompakt.engine.context.projection import Load
from kompakt.engine.ledger.items import BULLET, CHANGES, FINDINGS, RUNS, STATE, parse
from kompakt.engine.ledger.lookups import ONLY_LOOKUPS
from kompakt.engine.pivot.pivot import Material, Summarizer, adopt_pivots, ask_summarizer, count_exactly, facts_beside
from kompakt.engine.strategies.strategy import MEASURES, PIVOT_MESSAGES, Target, Trigger, aim_of, checked_target
from kompakt.model.phrases import RUNTIME_LINE

SUMMARY_SHARE = 0.8
"""Largest share of the variable part, up to the goal, for the pivot. Only a budget far below the history reaches
it."""

LEDGER_SHARE = 0.12
"""Tokens of ledger for each hidden token: enough for nearly every name that recorded agents used again."""

MIN_LEDGER = 120
"""Least tokens of a pivot, even if the goal leaves less."""

MAX_LEDGER = 8_000
"""Most tokens of a pivot in any window. Recall restores what it leaves out."""

NARRATIVE_SHARE = 0.7
"""Share of the pivot for a summarizer's narrative; the ledger takes the rest, and what the narrative leaves. A model
says more in a token than quotations do. The ledger needs room for what models get wrong: the user's words, changed
files, tasks and failures."""

TALK_SHARE = 0.95
"""The same for sessions in which nothing was changed, run or planned: conversations and lookups. Code can only quote
sentences and tables there, which a model summarizes better."""


class Summarization:
    """Replace the oldest groups by a pivot and keep a tail; earlier pivots are folded in."""

    def __init__(
        self,
        summarizer: Summarizer | None = None,
        *,
        share: float = SUMMARY_SHARE,
        when: Trigger | None = None,
        target: int | Target | None = None,
    ) -> None:
        self.summarizer = summarizer
        self.share = share
        self.when = when
        self.target = checked_target(target, MEASURES, type(self).__name__)
        self.decides = when is not None or target is not None
        """Whether it has a trigger of its own; otherwise the budget decides."""

    concludes = True
    """Runs even if other steps reached the goal, because what they hid must be summarized."""

    @property
    def awaits(self) -> bool:
        """Whether it may await: only with a summarizer."""
        return self.summarizer is not None

    async def __call__(self, context: Context) -> bool:
        """Summarize when due. If the summarizer's text is empty or too long, the pivot has the ledger alone."""
        aim = aim_of(context, self.when, self.target)
        goal = context.tokens if aim.tokens is None else aim.tokens
        if not (self.when(context) if self.when is not None else not aim.reached(context) or owed(context, goal)):
            return False
        context.note_run()
        before, known = context.snapshot(), context.inherited
        adopt_pivots(context)
        groups, room, load = self._oldest(context, aim, goal)
        if not groups and context.inherited == known and not owed(context, goal):
            context.rollback(before)
            return False
        text = ""
        if self.summarizer is not None and not context.is_replay:
            text = await self._asked(context, groups, room)
        context.replace(groups, text, reason="summarized", room=room, load=load)
        if not context.is_replay:
            count_exactly(context)
        if self.summarizer is not None and context.is_replay:
            context.deferred_summary = partial(self._reword, room=room)
        return True

    async def _reword(self, context: Context, *, room: int) -> bool:
        """Add a narrative of everything that the replay hid."""
        room = max(room, min(room + context.unused, MAX_LEDGER))
        text = await self._asked(context, context.covered_groups(), room)
        if text:
            context.reword(text, room=room)
            count_exactly(context)
        return bool(text)

    def is_due(self, context: Context) -> bool:
        """Return whether there is anything to do; takes constant time."""
        return self.when(context) if self.when is not None else not aim_of(context, None, self.target).reached(context)

    def _oldest(self, context: Context, aim: Target, goal: int) -> tuple[list[ContextGroup], int, Load]:
        """Return the oldest groups, as many as must be hidden, with the room and the load of their pivot."""
        summary = context.summary_text
        most = min(max(int((goal - context.required_tokens) * self.share), MIN_LEDGER), MAX_LEDGER)
        load = summary.load if summary else Load()
        hidden, weight = load.hidden, load.weight
        others = context.visibility.replacements.keys()
        cut = {group.number: group for group in context.live if not others.isdisjoint(group.indices)}
        shown = sum((_load_of(context, group) for group in cut.values()), Load())
        rest = context.tokens - (summary.tokens if summary else 0)
        left = {"messages": context.shown_messages + PIVOT_MESSAGES, "groups": context.shown_groups + 1}
        left["bytes"] = context.bytes if aim.bytes is not None else 0
        limits = [(measure, limit) for measure in left if (limit := getattr(aim, measure)) is not None]
        taken: list[ContextGroup] = []
        messages, ledger_weight = context.messages, context.ledger.weight
        for group in context.droppable():
            fits = rest <= goal and rest + min(most, _room(context, Load(hidden, weight) + shown)) <= goal
            if fits and all(left[measure] <= limit for measure, limit in limits):
                break
            taken.append(group)
            rest -= group.tokens
            if limits:
                left["messages"] -= len(group)
                left["groups"] -= 1
                left["bytes"] -= context.visibility.group_bytes(group) if aim.bytes is not None else 0
            if group.number in cut:
                own = _load_of(context, group)
                shown -= own
                hidden += own.hidden
                weight += own.weight
                continue
            hidden += group.tokens
            if weight < 2 * MAX_LEDGER:  # otherwise there is more to say already than any pivot has room for
                for index in group.indices:
                    weight += ledger_weight(index, messages[index])
        load = Load(hidden, weight)
        room = min(max(most, min(goal - rest, MAX_LEDGER)), _room(context, load + shown))
        return taken, room, load

    async def _asked(self, context: Context, groups: Sequence[ContextGroup], room: int) -> str:
        """Ask for a narrative of what is new to it; the earlier narrative covers the rest."""
        assert self.summarizer is not None
        indices = sorted(index for group in groups for index in group.indices)
        leaving = frozenset(indices)
        kept = [index for index in context.shown_indices() if index not in leaving]
        messages = tuple(context.messages[index] for index in indices)
        max_tokens = int(room * NARRATIVE_SHARE)
        facts = facts_beside(context, groups, room - max_tokens)
        if not _has_deeds(facts):
            max_tokens = int(room * TALK_SHARE)
            facts = facts_beside(context, groups, room - max_tokens)
        material = Material(
            messages=messages,
            references=tuple(context.reference(index) for index in indices),
            earlier=_earlier_narrative(context),
            max_tokens=max_tokens,
            count=context.counter.tokens,
            instructions=context.instructions,
            facts=facts,
            kept=tuple(context.messages[index] for index in kept),
            kept_references=tuple(context.reference(index) for index in kept),
        )
        if not material.messages and material.earlier is None and material.instructions is None:
            return ""  # there is nothing to put into words
        context.narratives.append(material.account)
        return await ask_summarizer(self.summarizer, material, context.failures)


def _has_deeds(ledger: str) -> bool:
    """Return whether a ledger has anything that was changed, run or planned."""
    deeds = (STATE, CHANGES, RUNS)
    return any(section in deeds and not text.startswith(ONLY_LOOKUPS) for section, text, _, _ in parse(ledger).items)


def _earlier_narrative(context: Context) -> str | None:
    """Return what earlier passes wrote that the ledger next to a narrative does not repeat.

    That is their narratives. An earlier pass without a model wrote the assistant's own words instead.
    """
    summary = context.summary_text.text if context.summary_text else ""
    found: list[str] = []
    for text in (context.inherited or "", "" if summary == RUNTIME_LINE else summary):
        earlier = parse(text)
        prose = [f"{BULLET}{item}" for section, item, _, _ in earlier.items if section == FINDINGS]
        found.append("\n".join(earlier.narrative or prose))
    inherited, newest = found
    if context.is_resumed and newest:  # what is inherited then is a longer form of the same
        return newest
    return "\n".join(filter(None, [inherited, newest])) or None


def _load_of(context: Context, group: ContextGroup) -> Load:
    """Return the original size of a group and the estimated size of its ledger."""
    messages, visibility, hidden, weight = context.messages, context.visibility, 0, 0
    for index in group.indices:
        message = messages[index]
        hidden += context.counter.message(message) if index in visibility.replacements else visibility.counts[index]
        weight += context.ledger.weight(index, message)
    return Load(hidden, weight)


def _room(context: Context, load: Load) -> int:
    """Return the tokens to reserve: an earlier pivot in full, and a share of the rest, at most its whole ledger."""
    new = context.inherited if context.inherited and not context.is_resumed else None
    inherited = context.counter.tokens(new) if new else 0
    return inherited + FRAME + min(load.weight, int(load.hidden * LEDGER_SHARE))


FRAME = 300
"""Tokens for headings and for the lines that list files that were only read."""


MIN_SHORTENED = 3
"""Shortened texts and calls from which a pivot is worth its room. Results need none: their calls are shown."""


def owed(context: Context, goal: int) -> bool:
    """Return whether enough messages were shortened since the last pivot that a new one must summarize them."""
    if context.unsummarized:
        return True
    upto = context.summary_text.upto if context.summary_text else 0
    new = [index for index in context.visibility.replacements if index >= upto]
    cut = sum(context.counter.message(context.messages[index]) - context.message_tokens(index) for index in new)
    texts = sum(context.ledger.weight(index, context.messages[index]) > 0 for index in new)
    return cut > goal and texts >= MIN_SHORTENED
