"""What must be cut is cut no further than it must, and keeps what binds."""

from __future__ import annotations

import pytest
from tests.engine.sessions import chat
from tests.histories.messages import user

import kompakt
from kompakt.engine.fitting import largest_cap

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
