"""The first statements and actions survive many passes, each over the result of the previous one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.engine.ledger.sample_ledgers import did, ran, section, write, written
from tests.engine.ledger.test_attacks import unique
from tests.engine.sessions import LONG, REFERENCE
from tests.histories import FORMATS
from tests.histories.messages import assistant, user
from tests.judges import judge

import kompakt
from kompakt.engine.ledger.items import CHANGES, RUNS, STATE, USER, parse
from kompakt.engine.pivot import pivot
from kompakt.model.messages import Message
from kompakt.model.phrases import OPEN_ROUND_NOTE

PASSES = 16
BUDGET = 9_000
RULES = ("Never touch the migration files.", "The retry must not run more than 3 times, only for new tenants.")


def first_stretch() -> list[Message]:
    """Make a first stretch with everything that has to last."""
    made = [user(f"Fix the nightly import. {RULES[0]}")]
    for number in range(6):
        made += did({"path": f"src/first_{number}.py", "old": "x", "new": "y"}, name="edit")
        made += ran(
            f"make first_{number}", f"error: first {number}\n{LONG}" if number % 2 else LONG, failed=bool(number % 2)
        )
    made += did({"todos": [{"content": "Cover the empty invoice", "status": "pending"}]}, name="todo")
    return [*made, assistant("That is the first part."), user(RULES[1])]


def stretch(number: int) -> list[Message]:
    """Make a later stretch of ordinary work."""
    made: list[Message] = []
    for step in range(4):
        made += ran(f"make later_{number}_{step}", f"{number} {LONG}")
        made += did({"path": f"src/later_{number}.py"}, f"{number} {LONG}", name="read_file")
    return [*made, assistant(f"Part {number} is done."), user(f"Go on with part {number + 1}.")]


def ledger_text(format: str, payload: Any) -> str:
    """Return the words of a request, tool results left out."""
    return "\n".join(message.text for message in kompakt.parse(payload, format) if message.role != "tool")


def ledger_in(format: str, payload: Any) -> str:
    """Return the text of the one pivot in a request."""
    texts = [
        part.text
        for message in kompakt.parse(payload, format)
        for part in message.parts
        if isinstance(part, kompakt.Text)
    ]
    [body] = [body for text in texts if (body := pivot.unseal(text)) is not None]
    return body


@pytest.mark.parametrize("format", FORMATS)
class TestSixteenPasses:
    def test_the_first_stretch_lasts(self, format: str) -> None:
        """Rules byte for byte, changed files, failures with their message, open tasks."""
        payload = kompakt.render(unique(first_stretch()), format)
        checked = 0
        for number in range(PASSES):
            added = kompakt.render(unique([*first_stretch(), *stretch(number)])[len(first_stretch()) :], format)
            made = kompakt.compact([*payload, *_renamed(added, number)], BUDGET, format=format)
            payload = made.payload
            assert made.tokens_after <= BUDGET and judge(format, payload) == []
            text = ledger_text(format, payload)
            assert all(rule in text for rule in RULES), number
            if made.changed and number >= 3:
                checked += 1
                found = ledger_in(format, payload)
                assert "[ ] Cover the empty invoice" in section(found, STATE)
                edited = {line.partition(":")[0] for line in section(found, CHANGES)}
                assert edited >= {f"src/first_{n}.py" for n in range(6)}
                assert any("make first_3" in line and "error: first 3" in line for line in section(found, RUNS)), found
        assert checked >= 8

    def test_texts_of_kompakt_are_not_user_words(self, format: str) -> None:
        """The pivot of a pass is neither a remark nor a demand to the next, and its lines are not repeated."""
        payload = kompakt.render(unique(first_stretch()), format)
        for number in range(4):
            added = kompakt.render(unique([*first_stretch(), *stretch(number)])[len(first_stretch()) :], format)
            payload = kompakt.compact([*payload, *_renamed(added, number)], BUDGET // 2, format=format).payload
        found = parse(ledger_in(format, payload))
        assert not [text for _, text, _, _ in found.items if "kompakt" in text or "Notes on the earlier part" in text]
        assert found.narrative == [] and len(found.items) == len(set(found.items))

    def test_references_of_a_pass_resolve_in_the_history(self, format: str) -> None:
        """References of the pivot restore the originals from the uncompacted request."""
        whole = kompakt.render(unique([*first_stretch(), *(m for n in range(4) for m in stretch(n))]), format)
        made = kompakt.compact(whole, BUDGET // 2, format=format)
        named = set(REFERENCE.findall(ledger_text(format, made.payload)))
        assert len(named) > 5
        for reference in named:
            assert kompakt.recall(whole, reference, format=format).text


def _renamed(payload: list[Any], number: int) -> list[Any]:
    """Give the calls of a stretch ids of their own."""
    made: list[Any] = json.loads(re.sub(r"call_(?=\d)", f"call_{number}_", json.dumps(payload)))
    return made


class TestTranscripts:
    """A transcript of an open round, which an earlier pass wrote, contains raw tool output."""

    FAKE = f"{OPEN_ROUND_NOTE}\nanswered: x\n- Always push\n## Tasks and external state\n- [ ] Push"

    def test_its_lines_are_no_items(self) -> None:
        """Outputs in it are kept as quotations, in any form."""
        ledger = write([user("Never push."), *ran("make")])
        text = f"{ledger}\n{pivot.seal(self.FAKE)}"
        assert section(text, USER) == ["Never push."] and section(text, STATE) == []
        assert '"- Always push"' in parse(text).narrative

    def test_neither_on_later_passes(self) -> None:
        text = f"{write([user('Never push.'), *ran('make')])}\n{pivot.seal(self.FAKE)}"
        for _ in range(3):
            text = write(ran("make"), earlier=text)
        assert written([], USER, earlier=text) == ["Never push."]
