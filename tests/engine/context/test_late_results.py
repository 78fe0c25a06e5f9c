"""Late results: hidden calls are restored, and calls that wait for a person stay."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.sessions import exact, rounds, run, texts
from tests.histories.messages import assistant, call, result, tool, user
from tests.session.builders import fresh
from tests.session.builders import run as run_async

import kompakt
from kompakt.engine.context.context import Context
from kompakt.errors import UsageError
from kompakt.strategies import Summarization, Truncation

ASK: Any = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "drop", "server_label": "db", "arguments": "{}"}
YES: Any = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}


def said(role: str, text: str) -> Any:
    """Make a Responses message."""
    return {"role": role, "content": text}


class TestExcludedCalls:
    def pending(self) -> Context:
        """Make a context in which a call waits for its result, with later messages."""
        return Context(
            [user("Task."), assistant(call("a")), assistant("Meanwhile.", id="x"), user("Well?"), *rounds(2)]
        )

    def test_the_result_brings_its_call_back(self) -> None:
        """The newest message is never hidden, and the group is whole."""
        context = self.pending()
        assert context.exclude(context.group_at(1), reason="old")
        hidden = context.tokens
        context.append(tool(result("a", "late")))
        group = context.group_at(1)
        assert group.excluded is None and group.indices[-1] == len(context.messages) - 1
        assert context.messages[1] in context.project() and context.messages[-1] in context.project()
        assert exact(context) == context.projected_tokens == context.tokens > hidden
        assert context.actions()[-1].what == "included"
        with pytest.raises(UsageError, match="protected"):
            context.exclude(group, reason="again")

    def test_a_late_result_also_restores_a_summarized_group(self) -> None:
        """A summarized group is restored; the summary stays for the others."""
        context = self.pending()
        context.replace([context.group_at(1), context.group_at(2)], "Things were done.", reason="summarized")
        context.append(tool(result("a", "late")))
        assert context.group_at(1).excluded is None and context.group_at(1).summarized_by is None
        assert context.group_at(2).excluded == "summarized"
        assert context.messages[-1] in context.project() and exact(context) == context.projected_tokens

    def test_a_rollback_keeps_it_shown(self) -> None:
        """Messages that arrived after a snapshot are unchanged."""
        context = self.pending()
        context.exclude(context.group_at(1), reason="old")
        snapshot = context.snapshot()
        context.append(tool(result("a", "late")))
        context.rollback(snapshot)
        assert context.messages[-1] in context.project()


class TestWaiting:
    def test_an_open_call_of_the_newest_answer_stays(self) -> None:
        """A user who speaks before all results are there does not make the call droppable."""
        context = Context([user("Task."), *rounds(3), assistant(call("a"), call("b")), tool(result("a")), user("Hm.")])
        assert run(Truncation(target=0), context)
        assert context.group_at(7).excluded is None
        context.append(tool(result("b", "here")))
        assert context.group_at(7).indices == [7, 8, 10]

    def test_an_open_call_of_an_older_answer_may_go(self) -> None:
        """A call without an answer before the model continued counts as abandoned."""
        context = Context([user("Task."), assistant(call("a")), *rounds(3)])
        assert run(Truncation(target=0), context) and context.group_at(1).excluded

    @pytest.mark.parametrize("strategy", [Truncation(target=0), Summarization(target=0)])
    def test_a_pending_approval_stays_until_it_is_answered(self, strategy: Any) -> None:
        """A person may take days; the request is there when they decide."""
        items = [said("user", "Task."), ASK, said("user", "Meanwhile, look at this.")]
        context = Context(kompakt.parse(items, "openai-responses"))
        context.extend(rounds(4))
        assert run(strategy, context)
        asked = context.group_at(1)
        assert asked.excluded is None and context.is_protected(asked)
        context.extend(kompakt.parse([YES], "openai-responses"))
        assert asked.indices[-1] == len(context.messages) - 1 and context.messages[1] in context.project()
        context.extend([assistant("Done.", id="z"), *rounds(2, start=7)])
        assert not context.is_protected(asked)

    def test_an_approval_that_waits_in_a_store_is_found_by_its_answer(self) -> None:
        """The session is compacted while the request is open; the answer that comes later is sent, not dropped."""

        async def work() -> None:
            session = await fresh()
            talk = [said("user" if n % 2 else "assistant", f"{n} " + "word " * 60) for n in range(20)]
            await session.append([said("user", "Task."), ASK, *talk[1:]], format="openai-responses")
            await session.request_compaction()
            assert (await session.compact(700)).changed
            await session.append([YES, said("user", "Go on.")], format="openai-responses")
            shown = await session.project()
            assert "mcpr_1" in list(texts(shown.payload)) and YES in [dict(item) for item in shown.payload]

        run_async(work())


class TestSummary:
    def test_counts_the_pivot_as_shown(self) -> None:
        """Included is what the model sees: the numbers are those of the projection."""
        context = Context([user("Task."), *rounds(8), user("Next."), *rounds(1, start=9)])
        assert run(Summarization(target=2_000), context)
        counts = context.summary()
        assert counts["included"]["messages"] == len(context.project())
        assert counts["included"]["tokens"] + context.fixed_tokens == context.projected_tokens
        assert counts["included"]["groups"] == len(context.live) + 1
        assert counts["all"]["messages"] == len(context.messages)

    def test_counts_tokens_of_tool_calls(self) -> None:
        """All of them, and those shown."""
        context = Context([user("Task."), *rounds(3), assistant("So.", id="s"), user("Next."), *rounds(1, start=5)])
        tools = sum(context.counter.message(context.messages[i]) for i in (1, 2, 3, 4, 5, 6, 9, 10))
        assert context.summary()["all"]["tool_call_tokens"] == tools
        context.exclude(context.group_at(1), reason="old")
        shown = sum(context.counter.message(context.messages[i]) for i in (3, 4, 5, 6, 9, 10))
        assert context.summary()["included"]["tool_call_tokens"] == shown
