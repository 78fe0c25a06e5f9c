"""What must be cut is cut no further than it must, and keeps what binds."""

from __future__ import annotations

import pytest
from tests.engine.sessions import chat, texts
from tests.histories.messages import assistant, call, result, tool, user

import kompakt
from kompakt import render
from kompakt.engine.fitting import largest_cap
from kompakt.engine.ledger.lines import HEADING
from kompakt.model.messages import ToolCall

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

    def test_rules_take_half_of_the_room_at_most(self) -> None:
        """Hundreds of them leave room for what they are about."""
        rules = "\n".join(f"Never touch file number {n} of the old archive." for n in range(300))
        payload = chat(user(f"Make it work.\n{FILLER}\n{rules}\n{FILLER}\nThanks."), user("And?"))
        kept = kompakt.compact(payload, 500, format="openai-chat")
        text = kept.payload[0]["content"]
        assert kept.tokens_after <= 500 and text.startswith("Make it work.\nThis part") and text.endswith("Thanks.")
        assert text.count("Never touch file number") > 5


def test_a_rule_is_told_where_there_is_room_for_little_else() -> None:
    """Just above the floor a pivot says what the user forbade on the way; no heading stands alone."""
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
    told: list[bool] = []
    for more in range(0, 130, 5):
        kept = kompakt.compact(payload, caught.value.floor + more, format="anthropic")
        text = "\n".join(texts(kept.payload))
        assert kept.tokens_after <= caught.value.floor + more
        assert f"{HEADING}\n[kompakt" not in text
        told.append(RULE in text)
    assert told == sorted(told) and sum(told) > 5
