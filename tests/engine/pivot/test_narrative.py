"""A pivot with a narrative: the ledger next to it has the rest of the room and repeats none of the model's work."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.histories.messages import assistant, result, tool, user

import kompakt
from kompakt.engine.compaction.policies import Policy
from kompakt.engine.context.context import Context
from kompakt.engine.ledger.items import FINDINGS as FINDINGS_SECTION
from kompakt.engine.ledger.items import HEADING, SECTIONS
from kompakt.engine.pivot.pivot import Material
from kompakt.engine.strategies import Summarization
from kompakt.engine.strategies.summarization import NARRATIVE_SHARE, TALK_SHARE
from kompakt.model.messages import Message, ToolCall

REPORT = (
    "The root cause is the cache: it was never invalidated, because the key omits the tenant, so I decided to add it."
)
NARRATIVE = "The cache was never invalidated because its key omitted the tenant."
FINDINGS = SECTIONS[FINDINGS_SECTION]


def work(steps: int = 40) -> list[Message]:
    """Return a history in which the assistant explains itself and changes files."""
    history = [user("Fix the cache. Never touch the migrations.")]
    for n in range(steps):
        given = {"file_path": f"src/module_{n}.py", "old_string": "a", "new_string": f"value_{n} = compute({n})"}
        history += [
            assistant(f"{REPORT} Step {n} found {n * 7} stale entries.", ToolCall(f"c{n}", "Edit", given), id=f"a{n}"),
            tool(result(f"c{n}", "The file was updated. " + "line " * 60)),
        ]
    return [*history, user("And now the tests.")]


def material_of(context: Context, target: int, *, narrative: str = NARRATIVE) -> tuple[Material, str]:
    """Summarize to a target; return what the summarizer got and the text of the pivot."""
    seen: list[Material] = []
    strategy = Summarization(lambda material: seen.append(material) or narrative, target=target)
    assert asyncio.run(strategy(context))
    (found,) = seen
    text = next(message.text for message in context.project() if HEADING in message.text)
    return found, text


class TestDivision:
    def test_the_ledger_leaves_the_assistants_prose_to_the_narrative(self) -> None:
        alone = Context(work())
        asyncio.run(Summarization(target=3_000)(alone))
        assert any(FINDINGS in message.text for message in alone.project())
        _, text = material_of(Context(work()), 3_000)
        assert NARRATIVE in text and FINDINGS not in text and REPORT not in text
        assert "src/module_" in text or "module_" in text

    def test_the_summarizer_sees_what_code_supplies(self) -> None:
        """It gets the facts that are also next to its narrative: the same sections, without prose."""
        material, text = material_of(Context(work()), 3_000)
        assert material.facts.startswith(HEADING) and FINDINGS not in material.facts
        lines = [line.partition(" [m")[0] for line in material.facts.split("\n") if "module_" in line]
        assert lines and all(line in text for line in lines)

    def test_the_narrative_may_take_most_and_leaves_the_rest_to_the_ledger(self) -> None:
        context = Context(work())
        material, text = material_of(context, 3_000)
        room = context.summary_text.room if context.summary_text else 0
        assert material.max_tokens == int(room * NARRATIVE_SHARE)
        assert material.count(material.facts) <= room - material.max_tokens
        ledger = text[text.index(HEADING) :]
        assert material.count(ledger) > material.count(material.facts) * 1.2, "unused room was not given back"
        assert material.count(NARRATIVE) + material.count(ledger) <= room + 10

    def test_in_a_conversation_the_narrative_uses_most_tokens(self) -> None:
        talk = [message for n in range(200) for message in (user(f"Ann: I saw {n} geese."), assistant(f"Bob: So {n}!"))]
        context = Context(talk)
        material, _ = material_of(context, 800)
        room = context.summary_text.room if context.summary_text else 0
        assert material.max_tokens == int(room * TALK_SHARE) > room * NARRATIVE_SHARE

    def test_where_calls_only_look_things_up_the_narrative_uses_most_tokens(self) -> None:
        def looked_up(number: int) -> list[Message]:
            record = json.dumps({"order_id": f"W{number}00", "status": "open", "price": number})
            call = ToolCall(f"c{number}", "get_order", {"order_id": f"W{number}00"})
            return [assistant(call), tool(result(f"c{number}", record))]

        asked = [user("Which of my orders are open?"), *(part for n in range(1, 60) for part in looked_up(n))]
        context = Context([*asked, user("And what is their price?")])
        material, text = material_of(context, 800, narrative="Orders W100 and W200 are open.")
        room = context.summary_text.room if context.summary_text else 0
        assert material.max_tokens == int(room * TALK_SHARE)
        assert "W300 | " in text, "rows that the narrative does not have stay"
        assert "W100 | " not in text and "W200 | " not in text, "the narrative has these orders"

    def test_the_summarizer_knows_what_stays(self) -> None:
        """The first request states the task, and the newest messages show the state of the work."""
        material, _ = material_of(Context(work()), 3_000)
        assert material.kept[0].text.startswith("Fix the cache") and material.kept[-1].text == "And now the tests."
        assert len(material.kept) == len(material.kept_references)
        assert not set(material.kept_references) & set(material.references)

    def test_without_a_usable_narrative_code_writes_the_prose(self) -> None:
        """A model that fails costs the pivot nothing."""
        projections: list[list[Message]] = []
        for summarizer in (None, lambda _: ""):
            context = Context(work())
            asyncio.run(Summarization(summarizer, target=3_000)(context))
            projections.append(list(context.project()))
        assert projections[0] == projections[1]

    def test_prose_that_code_wrote_in_an_earlier_pass_is_given_to_the_model(self) -> None:
        """The originals are gone in a chain of stateless calls, and the next ledger will not repeat it."""
        seen: list[Material] = []
        payload = {"model": "gpt-5", "messages": [dict(one) for one in _chat(work())]}
        first = kompakt.compact(payload, 4_000, format="openai-chat")
        assert FINDINGS in first.report.notes
        longer = {**first.payload, "messages": [*first.payload["messages"], *_chat(work(60))[1:]]}
        policy = Policy("narrated", (Summarization(lambda material: seen.append(material) or NARRATIVE),))
        kompakt.compact(longer, 4_000, format="openai-chat", policy=policy)
        assert seen[-1].earlier is not None and "root cause is the cache" in seen[-1].earlier
        assert HEADING not in seen[-1].earlier


@pytest.mark.parametrize("budget", [1_500, 2_500, 4_000, 8_000])
@pytest.mark.parametrize("words", [1, 200, 900])
def test_narrative_and_ledger_fit_the_budget(budget: int, words: int) -> None:
    """The result fits for any length of the narrative; a narrative that is too long counts as a failure."""
    policy = Policy("narrated", (Summarization(lambda _: "word " * words),))
    payload = {"model": "gpt-5", "messages": _chat(work())}
    done = kompakt.compact(payload, budget, format="openai-chat", policy=policy)
    assert done.tokens_after <= budget and kompakt.check(done.payload, "openai-chat") == []


def _chat(messages: list[Message]) -> list[dict[str, object]]:
    rendered = kompakt.render(messages, format="openai-chat")
    return rendered if isinstance(rendered, list) else rendered["messages"]
