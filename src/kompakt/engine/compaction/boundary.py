"""Find the message at which a growing history was last due for compaction, from token counts alone.

A compaction ends at its goal. The size of the request after it is therefore known without doing it: the goal, then the
messages that follow. Walking over the counts gives the last message at which that size passed the trigger. A call
without state compacts there once, from the original messages before it. A history that grew by one step has the same
last message, unless that step made another compaction due, so its projection extends the previous one.

Cost: linear in the messages for their counts, and a binary search for each compaction that was due.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from kompakt.engine.context.values import speaks, states_task, step_size
from kompakt.model.budget import Budget
from kompakt.model.messages import Message
from kompakt.model.tokens import Counter


class Required:
    """The tokens that no compaction of the first messages of a history may remove, estimated from their counts.

    ``Archive.protected`` has the exact rule. The estimate covers instructions, first and newest request, pins, and what
    the model has not answered yet, without the input of answered calls.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        counts: Sequence[int],
        *,
        counter: Counter,
        fixed: int,
        pinned: Iterable[int] = (),
    ) -> None:
        self.fixed = fixed
        """Tokens of system prompt and tools."""
        self._messages, self._counts, self._counter = messages, counts, counter
        self._requests = [index for index, message in enumerate(messages) if message.role == "user" and speaks(message)]
        self._task = [index for index in self._requests if states_task(messages[index])][:1]
        self._instructions = [index for index, message in enumerate(messages) if message.role == "system"]
        self._pinned = sorted(pinned)

    def among(self, upto: int) -> int:
        """Count what has to stay of the first ``upto`` messages."""
        messages, inputs = self._messages, 0
        kept = {index for index in (*self._task, *self._instructions, *self._pinned) if index < upto}
        kept.update(self._requests[max(0, bisect_left(self._requests, upto) - 1) : bisect_left(self._requests, upto)])
        index = upto - 1
        while index >= 0 and messages[index].role != "assistant":
            kept.add(index)
            index -= 1
        while index >= 0 and messages[index].role == "assistant" and (calls := messages[index].calls):
            kept.add(index)
            inputs += sum(map(self._counter.part, calls))
            index -= 1
        return self.fixed + sum(self._counts[index] for index in kept) - inputs


def last_due(
    messages: Sequence[Message],
    counts: Sequence[int],
    budget: Budget,
    required: Required,
    *,
    share: float | None = None,
    surplus: int = 0,
) -> int:
    """Return how many messages there were when a compaction was last due; all of them if it never was.

    The budget is checked before each answer of the model and at the end. ``share`` is the target share of the policy,
    ``surplus`` the tokens of the frame around the pivot, which may come on top of the goal.
    """
    answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
    checks = [index for index in answers if not index or messages[index - 1].role != "assistant"]
    sums = list(accumulate(counts, initial=0))
    sizes = [sums[index] for index in checks]
    due = len(messages)
    size, at = required.fixed, 0
    while True:
        # At a check the request has size + sums[check] - sums[at] tokens.
        number = max(bisect_right(checks, at), bisect_right(sizes, budget.trigger - size + sums[at]))
        if number == len(checks):
            return len(messages) if size + sums[-1] - sums[at] > budget.trigger else due
        due = at = checks[number]
        size = surplus + budget.goal(step_size(messages, counts, at), fixed=required.among(at), share=share)
