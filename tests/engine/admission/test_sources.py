"""Admission of source files, of repeated texts and of encoded bytes."""

from __future__ import annotations

import msgspec
import pytest
from tests.engine.admission.test_kinds import HARD, LOW, REFERENCE, admitted, blob, body, module, numbered

from kompakt.engine.admission import Seen, admit
from kompakt.model.phrases import repeated_note


class TestSources:
    def test_numbers_that_follow_from_one_another_go(self) -> None:
        """One in ten stays; the lines are those of the file."""
        lines = module(6)
        found = admitted(numbered(lines))
        assert found.kind == "source"
        shown = body(found.text)
        assert shown[0] == "     1\timport os"
        assert shown[9] == f"    10\t{lines[9]}"
        assert [line for n, line in enumerate(shown, 1) if n % 10 and n > 1] == [
            line for n, line in enumerate(lines, 1) if n % 10 and n > 1
        ]
        assert "nothing left out" in found.text

    @pytest.mark.parametrize("sign", ["\t", "→", ": ", "| "])
    def test_numbers_are_known_in_every_print(self, sign: str) -> None:
        """Tools use different separators between number and line."""
        assert admitted(numbered(module(6), sign=sign)).kind == "source"

    def test_bodies_are_folded_to_signatures(self) -> None:
        """Every definition stays, with the last line of its body."""
        shown = body(admitted(numbered(module(30)), HARD).text)
        assert shown[1] == "def work_0(first, second): ⋯ 10"
        assert [n for n in range(30) if any(f"def work_{n}(first, second): ⋯ " in line for line in shown)] == [
            *range(30)
        ]
        assert not any("total" in line for line in shown)

    def test_types_keep_their_members(self) -> None:
        """Without comments, up to a limit; function bodies are removed."""
        lines = [
            "package shop",
            "type Order struct {",
            *(line for n in range(30) for line in (f"\t// Field{n} is one of many.", f"\tField{n} string")),
            "}",
            "const (",
            "\tOpen = 1",
            "\tDone = 2",
            ")",
            "func (o *Order) Total() int {",
            *(f"\tsum += o.part({n})" for n in range(40)),
            "}",
            "const add = (first) => {",
            *(f"\tpush(first, {n})" for n in range(40)),
            "}",
        ]
        shown = body(admitted(numbered(lines), HARD).text)
        assert [line.split(" ")[0].strip() for line in shown if "string" in line] == [f"Field{n}" for n in range(20)]
        assert "\tOpen = 1" in shown
        assert not any("is one of many" in line or "o.part" in line or "push" in line for line in shown)

    def test_what_was_folded_is_shown_when_asked_for(self) -> None:
        """A part read again is meant."""
        seen = Seen()
        lines = module(30)
        admit(numbered(lines), reference="m0001.0", settings=HARD, seen=seen)
        asked = {"path": "a.py", "offset": 11, "limit": 40}
        again = admit(numbered(lines[10:50], first=11), reference="m0002.0", settings=HARD, seen=seen, call_input=asked)
        assert again is not None
        assert "    total = first * 2 + second" in again.text.split("\n")

    def test_what_was_shown_is_pointed_to(self) -> None:
        """A later read of a file shows the lines that differ."""
        seen = Seen()
        lines = module(12)
        admit(numbered(lines), reference="m0001.0", settings=LOW, seen=seen)
        changed = [*lines[:40], "    changed = True", *lines[40:]]
        found = admit(numbered(changed), reference="m0002.0", settings=LOW, seen=seen)
        assert found is not None
        assert body(found.text) == ["⋯ 1-40 as in m0001.0", "    41\t    changed = True", "⋯ 42-88 as in m0001.0"]

    def test_failures_in_a_source_stay_with_their_numbers(self) -> None:
        """For any content, for example a log that was read as a file."""
        lines = module(30)
        lines[100] = "    panic: all is lost"
        assert "   101\t    panic: all is lost" in admitted(numbered(lines), HARD).text

    def test_text_of_the_tool_around_a_page_stays(self) -> None:
        """A header and a trailer are no lines of the file."""
        found = admitted(f"Here is the file:\n{numbered(module(30))}\nThat was all.", HARD)
        assert body(found.text)[0] == "Here is the file:"
        assert body(found.text)[-1] == "That was all."

    def test_written_words_are_not_folded(self) -> None:
        """A document read with line numbers keeps its sentences."""
        words = [
            "# Title",
            "",
            *(f"The sentence with {'abcdef'[n % 6] * (n + 1)} says what is to be done." for n in range(60)),
        ]
        shown = "\n".join(body(admitted(numbered(words), HARD).text))
        assert all(word in shown for word in words)

    def test_code_that_words_quote_is_folded_when_firm(self) -> None:
        """Down to its signatures and ids; sentences stay, and what is no code."""
        said = [f"The sentence with {'abcdef'[n % 6] * (n + 1)} says what is to be done." for n in range(60)]
        code = ["```python", *module(12), "    commit = '7f3a9c1'  # the first one", "```"]
        data = ["```json", "{", *(f'  "key_{n}": "value of it",' for n in range(20)), "}", "```"]
        text = "\n".join([*said[:30], *code, *data, "```", *module(2), *said[30:]])
        shown = body(admitted(text, HARD).text)
        assert all(line in shown for line in [*said, *data, *module(2)])
        assert "def work_10(first, second): ⋯ 111" in shown
        assert "    commit = '7f3a9c1'  # the first one" in shown
        assert admit(text, reference=REFERENCE, settings=LOW) is None

    def test_an_echo_of_an_edit_is_folded_when_firm(self) -> None:
        """The call itself contains the change."""
        lines = module(8)
        given = {"path": "a.py", "new": "\n".join(lines[4:9])}
        text = f"The file was changed. Now it reads:\n{numbered(lines)}"
        found = admitted(text, HARD, call_input=given)
        assert body(found.text) == ["The file was changed. Now it reads: ⋯ 59"]
        assert len(body(admitted(text, LOW, call_input=given).text)) == 60

    def test_code_without_numbers_is_code(self) -> None:
        """As a shell prints it."""
        found = admitted("\n".join(module(30)), HARD)
        assert found.kind == "source"
        assert "def work_29(first, second): ⋯" in found.text


class TestRepeats:
    def test_the_same_output_again_is_one_line(self) -> None:
        """With the name of the first; failures are repeated."""
        seen = Seen()
        text = "\n".join([*(f"Line {'abcdefgh'[n % 8] * (n + 1)} of it." for n in range(30)), "error: it broke"])
        assert admit(text, reference="m0001.0", settings=LOW, seen=seen) is None
        found = admit(text, reference="m0002.0", settings=LOW, seen=seen)
        assert found is not None
        assert found.kind == "repeat"
        assert found.text == f"error: it broke\n{repeated_note('m0001.0', 31)}"

    def test_repeated_texts_are_replaced_by_a_reference(self) -> None:
        """An output that grew by a few lines shows these."""
        seen = Seen()
        first = [f"The sentence with the word {word * 5} is a new one without repetition." for word in "abcdefghij"]
        admit("\n".join(first), reference="m0001.0", settings=LOW, seen=seen)
        found = admit("\n".join([*first, "And this is new."]), reference="m0002.0", settings=LOW, seen=seen)
        assert found is not None
        assert body(found.text) == ["⋯ 1-10 as in m0001.0", "And this is new."]


class TestBlobs:
    def test_a_blob_is_replaced_by_kind_size_and_hash(self) -> None:
        """In one line, with the text around it."""
        data = blob(3000)
        found = admitted(f"The picture is data:image/png;base64,{data} and so on.")
        assert f"base64,⋯ PNG image, {len(data)} characters, sha256 " in found.text
        assert found.text.split("\n")[0].endswith(" and so on.")

    def test_a_blob_over_many_lines_is_one(self) -> None:
        """As mail and certificates have it."""
        data = blob(3000)
        wrapped = "\n".join(data[start : start + 76] for start in range(0, len(data), 76))
        found = admitted(f"-----BEGIN-----\n{wrapped}\n-----END-----")
        assert "encoded data" in found.text or "PNG image" in found.text
        assert "-----END-----" in found.text
        assert len(found.text) < 400

    def test_long_words_and_rulers_are_no_blobs(self) -> None:
        """A word of one kind of letter is not encoded."""
        text = f"{'=' * 900}\n{'abc/' * 300}\n"
        found = admit(text, reference=REFERENCE, settings=msgspec.structs.replace(LOW, kinds=frozenset(["blob"])))
        assert found is None
