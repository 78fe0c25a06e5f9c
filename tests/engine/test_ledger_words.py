"""Constraints come from the user's own words, word for word, and from nowhere else."""

from __future__ import annotations

import pytest
from tests.engine.ledgers import did, facts, keys, ran, tell
from tests.histories.messages import assistant, user

from kompakt.engine.ledger.extract.user_words import binding, own_words, spoken_lines
from kompakt.model.messages import Message, Text, ToolResult
from kompakt.model.phrases import PIVOT_QUESTION, RUNTIME_LINE
from kompakt.model.tokens import counter_for

PROSE = "The service reads invoices from a queue and writes them to a table that others read every night. " * 8

OWN = [
    "don't touch the migration files",
    "Always run the tests before you commit.",
    "The retry must never run more than 3 times!",
    "Use tabs instead of spaces;",
    "- only tenants on the new plan should see this;",
    "Never log at ERROR level, that pages people.",
    "rename foo => bar, but only in src",
    "Don\u2019t use the old client.",
    "1. make sure that `a < b` holds",
    "F\u00fcr jetzt: never use \u00fcber_client \u2014 ask \u5148\u751f first",
    "keep [kompakt] out of it, never mention it",
    "only\twith tabs   and  spaces kept",
]


class TestOwnWords:
    @pytest.mark.parametrize("sentence", OWN)
    def test_a_demand_is_kept_byte_for_byte(self, sentence: str) -> None:
        """In a short message, and on a line of a long one."""
        for text in (sentence, f"{PROSE}\n{sentence}\n{PROSE}"):
            assert sentence in keys([user(text)], "word")
            assert sentence in tell([user(text)])

    def test_a_sentence_of_a_long_line(self) -> None:
        """Of a paragraph the sentences that bind are kept."""
        sentence = "Do not change the public API."
        assert keys([user(f"{PROSE} {sentence} {PROSE}")], "word") == [sentence]

    def test_a_short_message_is_kept_whole(self) -> None:
        """What the user asked for is known even where it binds nothing."""
        assert keys([user("Add a button.\nMake it blue.")], "word") == ["Add a button.", "Make it blue."]

    @pytest.mark.parametrize("end", ["\r\n", "\n\n", " \n\t"])
    def test_line_ends(self, end: str) -> None:
        """However lines end, the words between are the same."""
        assert keys([user(f"{PROSE}{end}never do this{end}{PROSE}")], "word") == ["never do this"]


RULE = "You must always push to main."
NOT_OWN = {
    "reminder": f"<system-reminder>\n{RULE}\n</system-reminder>",
    "reminder with attributes": f'<context source="x">{RULE}</context>',
    "nested": f"<note>\n<note>\nx\n</note>\n{RULE}\n</note>",
    "never closed": f"<system-reminder>\nx\n{RULE}",
    "fence": f"```\n{RULE}\n```",
    "tilde fence": f"~~~ text\n{RULE}\n~~~",
    "indented fence": f"  ```sh\n  {RULE}\n  ```",
    "fence never closed": f"```\n{RULE}",
    "quotation": f"> {RULE}",
    "log": f"2026-11-15T08:00:01Z INFO {RULE}",
    "log level": f"ERROR {RULE}",
    "numbered": f"12\u2192{RULE}",
    "grep": f"src/a.py:12: {RULE}",
    "code": "if (must) { never(); }",
    "statement": "x = only(must);",
    "comment": f"// {RULE}",
    "diff": f"+++ {RULE}",
    "prompt": f"$ {RULE}",
}


class TestNotOwnWords:
    @pytest.mark.parametrize("text", NOT_OWN.values(), ids=NOT_OWN)
    def test_what_was_pasted_binds_nobody(self, text: str) -> None:
        """Neither alone nor beside words that do."""
        assert keys([user(text)], "word") == []
        assert keys([user(f"Never stop.\n{text}")], "word") == ["Never stop."]

    def test_what_tools_and_the_assistant_say(self) -> None:
        """Their sentences are data."""
        told = [*did({"path": "a.md"}, RULE), *ran("make", RULE), *ran("make x", RULE, failed=True), assistant(RULE)]
        assert facts(told, "word") == []

    def test_what_a_provider_of_context_says(self) -> None:
        """A message with a source is not the user's, nor is a summary."""
        assert keys([Message("user", (Text(RULE),), source_id="memory")], "word") == []
        assert keys([Message("user", (Text(RULE),), is_summary=True)], "word") == []

    @pytest.mark.parametrize("line", [PIVOT_QUESTION, RUNTIME_LINE])
    def test_what_kompakt_says_on_the_users_side(self, line: str) -> None:
        """Alone, beside the user's words and beside results."""
        result = ToolResult("c", "done")
        for parts in ((Text(line),), (Text("Never stop."), Text(line)), (result, Text(line), Text("Never stop."))):
            assert set(keys([Message("user", parts)], "word")) <= {"Never stop."}

    def test_words_around_a_tag_remain(self) -> None:
        """Only what is inside goes."""
        assert own_words("a<x>b</x>c").split() == ["a", "c"]
        assert spoken_lines("is a < b?\nand <b>c</b>") == ["is a < b?", "and"]
        assert binding(f"never\n<br>\nalways {PROSE[:200]}")[0] == "never"


class TestPastedDocuments:
    DOCUMENT = "\n".join(f"Clause {n}: the supplier must never deliver item {n} late." for n in range(600))

    def test_a_document_does_not_crowd_out_earlier_demands(self) -> None:
        """One line of each message comes before the second of any; the rest of the room is for other facts."""
        rules = [f"Never touch table_{n}." for n in range(8)]
        changed = [m for n in range(5) for m in did({"path": f"src/f{n}.py", "old": "x", "new": "y"})]
        messages = [*(user(rule) for rule in rules), *changed, user(f"{self.DOCUMENT}\nDo not deploy it.")]
        room = 800
        text = tell(messages, room)
        assert all(rule in text for rule in rules) and "Do not deploy it." in text
        assert all(f"modified src/f{n}.py" in text for n in range(5))
        words = "\n".join(line for line in text.split("\n") if "Clause" in line)
        assert counter_for(None).text(words) <= room * 0.3

    def test_neither_in_a_later_pass(self) -> None:
        """What an earlier pass kept of the document still waits behind the others."""
        earlier = tell([user("Never touch table_1."), user(self.DOCUMENT)], 4000)
        text = tell([user("Only use port 8080.")], 500, earlier=earlier)
        assert "Never touch table_1." in text and "Only use port 8080." in text
