"""Fitting cuts no more than necessary and keeps rules of the user."""

from __future__ import annotations

import msgspec
import pytest
from tests.engine.sessions import chat, texts
from tests.histories.messages import assistant, call, result, tool, user
from tests.judges import FORMATS

import kompakt
from kompakt import render
from kompakt.engine.compaction.compact import CompactionOrder, compact, run_sync
from kompakt.engine.compaction.fit import largest_cap
from kompakt.engine.compaction.policies import policy_named
from kompakt.engine.ledger.items import HEADING
from kompakt.model.messages import History, Message, ToolCall
from kompakt.model.phrases import RUNTIME_LINE
from kompakt.model.tokens import counter_for

RULE = "Never touch the migration files, they are applied already."
FILLER = "This part tells how it came to be. " * 80


@pytest.mark.parametrize(
    ("sizes", "room", "cap"),
    [([538], 621, 621), ([538], 400, 400), ([5, 2_969], 3_140, 3_140), ([5, 600, 900], 1_205, 600), ([9], -4, 0)],
)
def test_results_that_all_fit_are_not_cut(sizes: list[int], room: int, cap: int) -> None:
    """The cap is as large as it can be; where none is needed it cuts nothing."""
    assert largest_cap(sizes, room) == cap


class TestFirstRequest:
    def test_what_it_forbids_stays_word_for_word(self) -> None:
        """Head, rule and tail stay, the rest is one recall away."""
        payload = chat(user(f"Make it work.\n{FILLER}\n{RULE}\n{FILLER}\nThanks."), user("And?"))
        kept = kompakt.compact(payload, 500, format="openai-chat")
        text = kept.payload[0]["content"]
        assert kept.tokens_after <= 500 and text.startswith("Make it work.") and text.endswith("Thanks.")
        assert text.count(f"\n{RULE}\n") == 1

    def test_rules_use_at_most_half_of_the_tokens(self) -> None:
        """Hundreds of them leave room for what they are about."""
        rules = "\n".join(f"Never touch file number {n} of the old archive." for n in range(300))
        payload = chat(user(f"Make it work.\n{FILLER}\n{rules}\n{FILLER}\nThanks."), user("And?"))
        kept = kompakt.compact(payload, 500, format="openai-chat")
        text = kept.payload[0]["content"]
        assert kept.tokens_after <= 500 and text.startswith("Make it work.\nThis part") and text.endswith("Thanks.")
        assert text.count("Never touch file number") > 5


def test_a_rule_is_kept_when_there_is_little_room() -> None:
    """Just above the floor a pivot still has the user's prohibitions, and no heading without content."""
    steps = [
        message
        for number in range(24)
        for message in (
            assistant(ToolCall(f"c{number}", "run", {"command": f"pytest tests/test_part_{number}.py"})),
            tool(result(f"c{number}", f"line {number}\n" * 200)),
        )
    ]
    talk = [user("Make it work."), *steps[:16], user(RULE), *steps[16:], user("Go on.")]
    payload = render([*talk, assistant(call("last")), tool(result("last", "ok"))], "anthropic")
    with pytest.raises(kompakt.DoesNotFit) as caught:
        kompakt.compact(payload, 20, format="anthropic")
    mentioned: list[bool] = []
    for more in range(0, 130, 5):
        kept = kompakt.compact(payload, caught.value.floor + more, format="anthropic")
        text = "\n".join(texts(kept.payload))
        assert kept.tokens_after <= caught.value.floor + more
        assert f"{HEADING}\n[kompakt" not in text
        mentioned.append(RULE in text)
    assert mentioned == sorted(mentioned) and sum(mentioned) > 5


def steps(count: int, *, lines: int = 60) -> list[Message]:
    """Make steps of a run: a command and what it printed."""
    return [
        message
        for number in range(count)
        for message in (
            assistant(ToolCall(f"c{number}", "run", {"command": f"pytest tests/test_part_{number}.py"})),
            tool(result(f"c{number}", "\n".join(f"line {at} of run {number} took 0.{at}s" for at in range(lines)))),
        )
    ]


READ = "\n".join(f"    value_{at} = compute(source[{at}], {at % 7})" for at in range(450))


@pytest.mark.parametrize("format", FORMATS)
class TestUnread:
    def test_a_result_that_was_just_read_stays_whole_while_the_request_fits(self, format: str) -> None:
        """A third of the budget, with many steps before it: these go, the result does not."""
        talk = [user("Make it work."), *steps(40), assistant(call("last")), tool(result("last", READ))]
        payload = kompakt.render(talk, format)
        size = kompakt.count(kompakt.render(talk[-2:], format), format=format).total
        kept = kompakt.compact(payload, size * 3, format=format)
        assert kept.changed and kept.tokens_after <= size * 3
        assert READ in "\n".join(texts(kept.payload))

    def test_the_ledger_gives_way_first(self, format: str) -> None:
        """If a result uses nearly all of the budget, little else stays; one line states that messages were removed."""
        talk = [user("Make it work."), *steps(40), assistant(call("last")), tool(result("last", READ))]
        payload = kompakt.render(talk, format)
        least = kompakt.count(kompakt.render([talk[0], *talk[-2:]], format), format=format).total
        for more in (100, 200, 500, 2_000):
            kept = kompakt.compact(payload, least + more, format=format)
            shown = "\n".join(texts(kept.payload))
            assert kept.tokens_after <= least + more and READ in shown
            assert RUNTIME_LINE in shown or HEADING in shown

    def test_results_that_the_user_spoke_after_are_unread_too(self, format: str) -> None:
        """A user who adds something before the model has answered hides nothing from it."""
        unread = [assistant(call("last")), tool(result("last", READ))]
        talk = [user("Make it work."), *steps(40), *unread, user("Quickly.")]
        payload = kompakt.repair(kompakt.render(talk, format), format).payload
        size = kompakt.count(kompakt.render(unread, format), format=format).total
        kept = kompakt.compact(payload, size * 2, format=format)
        assert READ in "\n".join(texts(kept.payload))


def test_the_reserve_for_the_answer_yields_before_an_unread_result() -> None:
    """It is kept free only as long as nothing has to be cut for it."""
    talk = [user("Make it work."), *steps(20), assistant(call("last")), tool(result("last", READ))]
    payload = chat(*talk)
    least = kompakt.count(chat(talk[0], *talk[-2:]), format="openai-chat").total
    budget = kompakt.Budget(window=least + 1_500, reserve=1_000 + 500, trigger=least - 200, target=1_000)
    kept = kompakt.compact(payload, budget, format="openai-chat")
    assert READ in "\n".join(texts(kept.payload)) and budget.usable < kept.tokens_after <= budget.window
    cut = kompakt.compact(payload, kompakt.Budget.of(least - 200), format="openai-chat")
    assert READ not in "\n".join(texts(cut.payload)) and cut.tokens_after <= least - 200


@pytest.mark.parametrize("policy", ["default", "window", "conservative", "aggressive"])
@pytest.mark.parametrize("format", FORMATS)
def test_omitted_steps_are_always_mentioned(format: str, policy: str) -> None:
    """From the floor on, at every budget below the size of the history."""
    talk = [user("Make it work."), *steps(20, lines=12), assistant(call("last")), tool(result("last", "ok"))]
    payload = kompakt.render(talk, format)
    with pytest.raises(kompakt.DoesNotFit) as caught:
        kompakt.compact(payload, 20, format=format, policy=policy)
    for more in (0, 10, 30, 60, 100, 300, 1_000, 3_000):
        kept = kompakt.compact(payload, caught.value.floor + more, format=format, policy=policy)
        shown = "\n".join(texts(kept.payload))
        assert kept.tokens_after <= caught.value.floor + more
        assert len(kompakt.parse(kept.payload, format)) < len(talk)
        assert RUNTIME_LINE in shown or HEADING in shown
        again = kompakt.compact(kept.payload, caught.value.floor + more, format=format, policy=policy)
        assert again.payload == kept.payload


def test_tokens_that_are_spared_stay_free() -> None:
    """The caller's addition to the result is reserved, and the floor of an error includes it."""
    talk = History([user("Make it work."), *steps(30), user("Go on.")], format="openai-chat")
    order = CompactionOrder(budget=kompakt.Budget.of(2_000), policy=policy_named("default"), counter=counter_for(None))
    for spare in (0, 200, 1_000, 1_800):
        done = run_sync(compact(talk, msgspec.structs.replace(order, spare=spare)), may_wait=False)
        assert done.context.projected_tokens <= 2_000 - spare
    with pytest.raises(kompakt.DoesNotFit) as caught:
        run_sync(compact(talk, msgspec.structs.replace(order, spare=2_000)), may_wait=False)
    assert caught.value.budget >= 2_000 and caught.value.floor > 2_000
