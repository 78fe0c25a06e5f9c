"""Properties of admission for any output."""

from __future__ import annotations

import json
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kompakt.engine.admission import FIRM, GENTLE, AdmissionSettings, Admitted, Seen, admit
from kompakt.engine.admission.failures import cut, failures, printed_numbers
from kompakt.engine.admission.kinds.json_value import minify
from kompakt.engine.admission.lines import numbered_text
from kompakt.model.phrases import cut_note, is_admitted

LEVELS = [
    msgspec.structs.replace(GENTLE, min_tokens=10),
    msgspec.structs.replace(FIRM, min_tokens=10, max_body_tokens=20, max_range_tokens=20, max_log_lines=6),
]

_words = st.sampled_from(["alpha", "beta", "x", "=", "0", "17", "a/b.py", "{", "}", "(", ")", "def", "café", "⋯"])
_said = st.lists(_words, max_size=6).map(" ".join)
_failed = st.sampled_from(
    [
        "error: no such thing",
        "src/a.c:3:5: error: unknown type",
        "error[E0308]: mismatched types",
        "FAIL",
        "--- FAIL: TestThing (0.01s)",
        "FAILED tests/test_a.py::test_b - assert 1 == 2",
        "panic: runtime error",
        "fatal: not a repository",
        "ValueError: bad value",
        "KeyError",
        "Exit code 1",
        "npm ERR! code 2",
        "bash: nothing: command not found",
        "2 failed, 3 passed in 0.1s",
        "E   assert 1 == 2",
    ]
)
_shapes = st.sampled_from(
    [
        "{}",
        "    {}",
        "     7\t{}",
        "+{}",
        " {}",
        "src/a.py:12:{}",
        "12:{}",
        "=== RUN   {}",
        "--- PASS: Test{} (0.0s)",
        "2024-01-01 10:00:00 INFO {}",
        '  File "/app/a.py", line 3, in {}',
        "\tat a.b.C({})",
        "def {}():",
        "diff --git a/{} b/{}",
        "@@ -1,2 +1,2 @@ {}",
        "[kompakt] {}",
        "dir/{}",
        '"{}": 3,',
        "size of {}: 17",
        "total = 2048 bytes",
    ]
)
_line = st.one_of(_failed, st.builds(lambda shape, said: shape.replace("{}", said), _shapes, _said))
_block = st.builds(lambda line, times: [line] * times, _line, st.integers(1, 30))
_numbered = st.lists(_line, min_size=5, max_size=40).map(
    lambda lines: [f"{n:6}→{line}" for n, line in enumerate(lines, 1)]
)
outputs = st.lists(st.one_of(st.lists(_line, max_size=8), _block, _numbered), max_size=8).map(
    lambda blocks: "\n".join(line for block in blocks for line in block)
)

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(), inner, max_size=5)),
    max_leaves=30,
)


def admit_all(texts: list[str], level: AdmissionSettings) -> list[Admitted | None]:
    """Admit outputs of one history, in order."""
    seen = Seen()
    return [
        admit(text, reference=f"m{place:04x}.0", settings=level, seen=seen, call_input={"path": "a.py"})
        for place, text in enumerate(texts)
    ]


@pytest.mark.parametrize("level", LEVELS, ids=["gentle", "firm"])
class TestEveryOutput:
    @given(texts=st.lists(outputs, min_size=1, max_size=3))
    def test_failures_stay_word_for_word(self, level: AdmissionSettings, texts: list[str]) -> None:
        """Every line that reports a failure is in the text, in any context."""
        for text, found in zip(texts, admit_all(texts, level), strict=True):
            if found is None:
                continue
            lines = numbered_text(text).lines
            shown = found.text
            for place in failures("\n".join(lines), lines):
                assert cut(lines[place].strip(), level.max_line) in shown

    @given(text=outputs)
    def test_printed_numbers_stay_with_their_keys(self, level: AdmissionSettings, text: str) -> None:
        """Those that the ledger takes of what a command prints."""
        found = admit(text, reference="m0000.0", settings=level)
        if found is None or numbered_text(text).is_numbered:
            return
        lines = found.text.split("\n")
        for key, number in printed_numbers(text):
            assert any(key in line and number in line for line in lines)

    @given(texts=st.lists(st.one_of(outputs, st.text(max_size=400)), min_size=1, max_size=3))
    def test_it_is_smaller_and_has_a_reference_to_the_rest(self, level: AdmissionSettings, texts: list[str]) -> None:
        """By at least the configured share; the last line contains a reference."""
        for place, found in enumerate(admit_all(texts, level)):
            if found is not None:
                assert found.tokens_after <= found.tokens_before * (1 - level.min_saving)
                assert is_admitted(found.text)
                note = found.text.split("\n")[-1]
                assert f"Original: m{place:04x}.0" in note or ("The same" in note and "Original: m000" in note)

    @given(texts=st.lists(outputs, min_size=1, max_size=3))
    def test_twice_is_once(self, level: AdmissionSettings, texts: list[str]) -> None:
        """The same history gives the same bytes; an admitted text is left alone; what comes later changes nothing."""
        found = admit_all(texts, level)
        assert admit_all(texts, level) == found
        assert admit_all(texts[:1], level) == found[:1]
        again = [admit(one.text, reference="mffff.0", settings=level) for one in found if one is not None]
        assert again == [None] * len(again)

    @given(text=outputs, names=st.lists(st.integers(0, 0xFFFF), min_size=2, max_size=2))
    def test_the_name_of_a_message_decides_nothing(self, level: AdmissionSettings, text: str, names: list[int]) -> None:
        """Compression does not depend on the name of an output, because names change from pass to pass."""
        one, other = (admit(text, reference=f"m{name:04x}.0", settings=level) for name in names)
        assert (one is None) == (other is None)

    @given(text=outputs)
    def test_what_was_shortened_is_left_alone(self, level: AdmissionSettings, text: str) -> None:
        """Head and tail of an output that a later step cut are not compressed in the next pass."""
        assert admit(f"{text}{cut_note('m1234.0', 500)}{text}", reference="m0000.0", settings=level) is None

    @given(text=st.text(max_size=600))
    def test_anything_may_come(self, level: AdmissionSettings, text: str) -> None:
        """No text makes it raise."""
        admit(text, reference="m0000.0", settings=level, call_input=text)
        admit(text * 40, reference="m0000.0", settings=level, call_input={"a": [{"b": text}], "c": 3})


class TestJson:
    @given(value=values, indent=st.sampled_from([0, 1, 4, "\t"]))
    def test_minifying_loses_nothing(self, value: object, indent: int | str) -> None:
        """The value is the same, and in one line."""
        text = json.dumps(value, indent=indent, ensure_ascii=False)
        assert json.loads(minify(text)) == json.loads(text)
        assert minify(text).count("\n") == 0


WIDE = {
    "one letter": "x" * 1_000_000,
    "newlines": "\n" * 1_000_000,
    "spaces": " " * 1_000_000,
    "tabs": "\t" * 1_000_000,
    "digits": "1 " * 500_000,
    "colons": "a:" * 500_000,
    "braces": "{" * 1_000_000,
    "brackets": "[" * 100_000 + "]" * 100_000,
    "JSON with blanks": '{"a":' + " " * 1_000_000 + "1}",
    "JSON with blanks and breaks": "[1," + "\t\r \n" * 250_000 + "\r" * 250_000 + "2]",
    "marks around words": "---" + "x*" * 500_000,
    "colons of a test": "::" * 500_000,
    "path": "a/" * 500_000,
    "encoded": "aB3" * 333_333,
    "dashes": "a-1-" * 250_000,
    "errors": "Error" * 200_000,
    "calls": "\tf(" * 300_000,
    "failures": "error: x\n" * 20_000,
    "frames": "\tat a.b(c)\n" * 20_000,
    "hunk": "diff --git a b\n@@ -1 +1 @@\n" + "+x\n" * 50_000,
    "numbered": "".join(f"{n:6}\tx = {n}\n" for n in range(20_000)),
}


class TestBounds:
    """Work grows with the size of a text and with nothing else."""

    @pytest.mark.parametrize("name", WIDE)
    @settings(deadline=None)
    @given(level=st.sampled_from(LEVELS))
    def test_a_megabyte_of_anything_ends(self, name: str, level: AdmissionSettings) -> None:
        """Quadratic work would take hours here."""
        found = admit(WIDE[name], reference="m0000.0", settings=level, count=len)
        assert found is None or len(found.text) < len(WIDE[name])

    @pytest.mark.parametrize("size", [200, 2_000])
    def test_looking_for_seen_lines_compares_each_a_few_times(self, size: int) -> None:
        """Texts that match everywhere and nowhere for long do not make it look again and again."""
        compared = 0

        class Line(str):
            __slots__ = ()
            __hash__ = str.__hash__

            def __eq__(self, other: object) -> bool:
                nonlocal compared
                compared += 1
                return str.__eq__(self, other)

            def __ne__(self, other: object) -> bool:
                return not self == other

        seen = Seen()
        for number in range(5):
            seen.add(f"m000{number}.0", [Line("the same line everywhere") for _ in range(size)])
        lines = [
            Line("the same line everywhere" if place % 3 else f"another line {place} here") for place in range(size)
        ]
        seen.runs(lines)
        assert compared < size * 12

    def test_the_tokens_of_a_small_text_are_not_even_counted(self) -> None:
        """A text with fewer characters than the least tokens has fewer tokens."""

        def count(text: str) -> int:
            raise AssertionError(text)

        assert admit("x" * (GENTLE.min_tokens - 1), reference="m0000.0", count=count) is None

    def test_kinds_are_recognized_by_the_first_lines(self) -> None:
        """To find out what a text is, its whole is never matched line by line."""
        text = "\n".join(f"word{n} of a long log {'y' * (n % 13)}" for n in range(20_000))
        looked = 0

        def entry(line: str) -> None:
            nonlocal looked
            looked += 1

        with patch("kompakt.engine.admission.kinds.paths._entry", entry):
            admit(text, reference="m0000.0", settings=LEVELS[0], count=len)
        assert looked <= 100
