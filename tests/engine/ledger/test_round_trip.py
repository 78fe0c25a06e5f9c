"""A written ledger is read back as the same items, for any words."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
from tests.engine.ledger.sample_ledgers import did, ran, write
from tests.histories.messages import assistant, malformed, user

from kompakt.engine.ledger.excerpts import harmless
from kompakt.engine.ledger.items import (
    CHANGES,
    FINDINGS,
    HEADING,
    HEADING_0_1,
    LOOKED,
    RUNS,
    SECTIONS,
    STATE,
    TALK,
    USER,
    Item,
    narrated,
    narrative_of,
    parse,
    without_false_quotes,
)
from kompakt.engine.ledger.items import write as write_items
from kompakt.model.messages import Message
from kompakt.model.tokens import counter_for

PIECES = st.sampled_from(
    ["a", "`", '"', "- ", "## Changes made", HEADING, "[m1234]", " […] ", "\n", ": edited", "[x] ", "[kompakt] ", "12"]
)
nasty = st.lists(PIECES, min_size=1, max_size=8).map("".join).map(lambda text: harmless(text).strip()).filter(bool)
items = st.builds(
    Item,
    st.sampled_from(sorted(set(SECTIONS) - {TALK})),
    st.integers(0, 1000).map(float),
    nasty,
    st.just(1.0),
    st.sampled_from(["", "m1234", "mabcd.2"]),
)


class TestReadingBack:
    @given(st.lists(items, max_size=12, unique_by=lambda item: item.at))
    def test_items_come_back_as_they_were(self, made: list[Item]) -> None:
        order = {section: number for number, section in enumerate(SECTIONS)}
        expected = [
            (item.section, item.text, item.reference, "")
            for item in sorted(made, key=lambda item: (order[item.section], item.at))
        ]
        found = parse(write_items(made))
        if all(item.reference or not item.text.endswith("[m1234]") for item in made):
            assert found.items == expected and found.narrative == []

    def test_sentences_of_one_speaker_share_a_bullet(self) -> None:
        said = ["Ann: I moved to Oslo.", "Bob: Nice!", "Ann: My dog is called Rex."]
        made = [Item(TALK, at, text, 1, label="1 May") for at, text in enumerate(said)]
        written = write_items(made)
        assert written.endswith("1 May:\n- Ann: I moved to Oslo. / My dog is called Rex.\n- Bob: Nice!")
        assert sorted(text for _, text, _, _ in parse(written).items) == sorted(said)

    def test_short_rows_of_one_table_share_a_bullet(self) -> None:
        rows = ["A1 | 10", "B2 | 20", "C3 | a cell that is far too long to share its line with others"]
        made = [Item(LOOKED, at, row, 1, label="get_price → id | price") for at, row in enumerate(rows)]
        written = write_items(made)
        assert written.endswith(f"get_price → id | price:\n- A1 | 10; B2 | 20\n- {rows[2]}")
        assert [(text, label) for _, text, _, label in parse(written).items] == [
            (row, "get_price → id | price") for row in rows
        ]

    def test_passages_of_one_message_share_a_bullet(self) -> None:
        parts = [Item(USER, 3, f"part {n}", 1, "m1234", passage=n, passages=4) for n in (0, 1, 3)]
        assert write_items(parts).endswith("- part 0 part 1 […] part 3 [m1234]")
        whole = [Item(USER, 3, f"part {n}", 1, "m1234", passage=n, passages=2) for n in (0, 1)]
        assert write_items(whole).endswith("- part 0 part 1")

    def test_a_narrative_is_what_precedes_the_ledger(self) -> None:
        ledger = write([user("Never push."), *ran("make")])
        text = f"{narrated(f'It went well.{chr(10)}{HEADING}{chr(10)}## Changes made{chr(10)}- x')}\n\n{ledger}"
        assert narrative_of(text).startswith("It went well.")
        assert parse(text).items == parse(ledger).items

    def test_very_long_numbers_are_no_counts(self) -> None:
        """Python refuses to read integers of more than 4,300 digits."""
        long = "9" * 5_000
        lines = [f"{SECTIONS[USER]} ({long} of {long} shown)", "- Go.", SECTIONS[CHANGES]]
        earlier = "\n".join([HEADING, *lines, f"- a.py: edited {long} times"])
        assert parse(earlier).left_out.total() == 0
        assert "Never push." in write([user("Never push."), *ran("make")], earlier=earlier)

    def test_writing_twice_changes_nothing(self) -> None:
        messages = [user("Never push."), *did({"path": "a.py", "old": "x = 1", "new": "x = 2"}), *ran("make", "built")]
        once = write(messages)
        assert write([], earlier=once) == once


class TestFalseQuotes:
    def test_only_quotes_that_their_message_does_not_hold_are_dropped(self) -> None:
        bullets = ["- a [m1111]", "- b […] c [m1111]", "- d", "- e [m2222]"]
        text = "\n".join(["Words.", HEADING, SECTIONS[USER], *bullets, SECTIONS[RUNS], "- z [m1111]"])
        kept = without_false_quotes(text, lambda reference, words: words in "bce")
        assert kept == text.replace("- a [m1111]\n", "")
        assert without_false_quotes(text, lambda *_: True) == text


class TestReleasedFormat:
    TEXT = "\n".join(
        [
            "A narrative.",
            HEADING_0_1,
            "The user's own words:",
            "m1111 user: Never push.",
            "+ user: Use port 8080.",
            "Tasks:",
            "m2222 task #3 in progress: Fix the parser",
            "Files, below /w/p:",
            "m3333 modified src/a.py; there: sets LIMIT",
            "+ read src/b.py",
            "Commands:",
            'm4444 failed, exit code 2: `make all` said "error: x"',
            "Values:",
            "m4444 value of limit: 12",
            "What the assistant told:",
            "m5555 told: The cache is stale.",
        ]
    )

    def test_ledgers_of_the_first_release_are_understood(self) -> None:
        found = parse(self.TEXT)
        assert found.narrative == ["A narrative."]
        assert found.items == [
            (USER, "Never push.", "", ""),
            (USER, "Use port 8080.", "", ""),
            (STATE, "[>] #3 Fix the parser", "", ""),
            (CHANGES, "/w/p/src/a.py: edited", "m3333", ""),
            (RUNS, 'failed, exit code 2: `make all` said "error: x"', "m4444", ""),
            (FINDINGS, "The cache is stale.", "m5555", ""),
        ]

    def test_they_are_carried_into_a_new_ledger(self) -> None:
        text = write(did({"taskId": 3, "status": "completed"}, name="TaskUpdate"), earlier=self.TEXT)
        assert "Never push." in text and "[x] #3 Fix the parser" in text and "/w/p/src/a.py: edited" in text


class TestAnyHistory:
    @given(malformed, st.integers(0, 2_000))
    def test_a_ledger_fits_its_room_and_is_deterministic(self, messages: list[Message], room: int) -> None:
        text = write(messages, room)
        assert counter_for(None).text(text) <= room or not text
        assert write(messages, room) == text

    def test_the_same_in_another_process(self) -> None:
        """No part of the text depends on the hash seed."""
        code = (
            "from tests.engine.ledger.test_round_trip import sample\n"
            "from tests.engine.ledger.sample_ledgers import write\nprint(write(sample(), 400))"
        )
        runs = [
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment(seed)
            )
            for seed in ("1", "2")
        ]
        assert runs[0].stdout == runs[1].stdout != "\n"


def environment(seed: str) -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def sample() -> list[Message]:
    """Make a session with something for every section."""
    made = [user("Fix it. Never push.")]
    for number in range(20):
        made += did({"path": f"src/f{number}.py", "old": "x = 1", "new": f"x = {number}"}, name="edit")
        made += ran(f"make part_{number}", "error: x\nExit code 1" if number % 2 else "built")
        made += [assistant(f"Part {number} failed because of the cache, so the limit is {number} now.")]
    return made
