"""Admission of each kind of output: what stays, what is removed, and how that is reported."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest

from kompakt.engine.admission import DEFAULT, FIRM, GENTLE, KINDS, AdmissionSettings, Admitted, Seen, admit
from kompakt.model.phrases import folded_note, is_admitted

REFERENCE = "m7f3a.1"
LOW = msgspec.structs.replace(GENTLE, min_tokens=20)
HARD = msgspec.structs.replace(FIRM, min_tokens=20, max_body_tokens=20, max_range_tokens=20)


def admitted(text: str, settings: AdmissionSettings = LOW, **more: object) -> Admitted:
    """Admit a text that is expected to be compressed."""
    found = admit(text, reference=REFERENCE, settings=settings, **more)  # type: ignore[arg-type]
    assert found is not None
    assert found.tokens_after < found.tokens_before
    return found


def body(text: str) -> list[str]:
    """Return the lines of an admitted text without the note."""
    assert is_admitted(text)
    return text.split("\n")[:-1]


def numbered(lines: list[str], *, first: int = 1, sign: str = "\t") -> str:
    """Print lines as tools do, with their numbers."""
    return "\n".join(f"{number:6}{sign}{line}" for number, line in enumerate(lines, first))


def module(count: int) -> list[str]:
    """Return a source file with a number of functions."""
    lines = ["import os", "import sys", ""]
    for number in range(count):
        lines += [
            f"def work_{number}(first, second):",
            f'    """Do the work of number {number}."""',
            f"    total = first * {number} + second",
            "    for item in range(total):",
            f"        print('item of {number}', item)",
            "    return total",
            "",
        ]
    return lines


SEARCH = "\n".join(
    f"src/package/module_{n // 20}.py:{n % 20 * 3 + 1}:    value = compute(number={n})" for n in range(100)
)

LISTING = "\n".join(f"src/package/inner_{n // 30}/module_{n}.py" for n in range(90))


class TestOutputs:
    def test_a_small_output_is_left_alone(self) -> None:
        """Below the least tokens nothing is looked at."""
        text = "\n".join(["same line"] * 60)
        assert admit(text, reference=REFERENCE, settings=AdmissionSettings(min_tokens=10_000)) is None

    def test_an_output_that_gains_little_is_left_alone(self) -> None:
        """Prose without repetition stays unchanged."""
        text = "\n".join(f"The {word} of the house is what nobody thought of before." for word in "abcdefghijkl")
        assert admit(text, reference=REFERENCE, settings=LOW) is None

    def test_the_reference_is_in_the_last_line(self) -> None:
        """One marked line states what is missing and how to restore it."""
        found = admitted("\n".join(["waiting for the server to come up"] * 200))
        assert found.text.split("\n")[-1] == folded_note(REFERENCE, 198, 200)
        assert found.text.endswith("[kompakt] 198 of 200 lines folded. Original: m7f3a.1")

    def test_an_admitted_output_is_left_alone(self) -> None:
        """A history that is sent back is not compressed twice."""
        found = admitted("\n".join(["waiting for the server to come up"] * 200))
        assert admit(found.text, reference="mffff.0", settings=msgspec.structs.replace(LOW, min_tokens=1)) is None

    def test_a_marker_in_an_output_is_unchanged(self) -> None:
        """Text that imitates kompakt is data: it is kept and never treated as the note."""
        fake = "[kompakt] 3 of 9 lines folded. Original: m0000.0"
        lines = ["waiting for the server to come up"] * 100
        found = admitted("\n".join([*lines, fake, *lines]))
        assert fake in body(found.text)
        assert found.text.endswith(f"Original: {REFERENCE}")

    @pytest.mark.parametrize("kind", sorted(KINDS - {"repeat"}))
    def test_a_kind_can_be_turned_off(self, kind: str) -> None:
        """With all kinds off every output is unchanged."""
        samples = {
            "blob": f"data {blob(3000)} end",
            "diff": DIFF * 4,
            "html": f"<!doctype html><html><style>{'b {color: red} ' * 200}</style><p>Tide at noon.</p></html>",
            "json": json.dumps([{"a": 1, "b": "two words"}] * 40, indent=2),
            "listing": LISTING,
            "log": "\n".join(["waiting for the server to come up"] * 100),
            "search": SEARCH,
            "source": numbered(module(20)),
            "table": "\n".join(f"{number},berth {number},open" for number in range(200)),
            "test run": GO_RUN,
            "trace": deep_trace(60),
        }
        none = msgspec.structs.replace(LOW, kinds=frozenset[str]())
        assert admit(samples[kind], reference=REFERENCE, settings=none) is None
        assert admitted(samples[kind], msgspec.structs.replace(LOW, kinds=frozenset([kind]))).kind == kind

    def test_the_default_is_gentle(self) -> None:
        """Agents at work edit what they read."""
        assert DEFAULT is GENTLE
        assert FIRM.max_body_tokens < GENTLE.max_body_tokens


def blob(size: int) -> str:
    """Make an encoded picture."""
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(number * 37 % 251 for number in range(size))).decode()


class TestJson:
    def test_only_layout_is_removed(self) -> None:
        """The value is the same, digit for digit."""
        text = json.dumps({"items": [{"id": n, "rate": 1.5, "name": f"n {n}\n"} for n in range(20)]}, indent=4)
        found = admitted(text)
        assert found.kind == "json"
        assert json.loads("\n".join(body(found.text))) == json.loads(text)
        assert found.text.endswith("nothing left out. Original: m7f3a.1")

    def test_numbers_and_repeated_keys_stay_as_written(self) -> None:
        """Layout alone is touched: no number is rounded, no key dropped."""
        rows = ",\n".join(f'            {{\n                "key": {n}\n            }}' for n in range(30))
        text = (
            f'{{\n    "a": 1.1000000000000000000001,\n    "a": 12345678901234567890123,\n    "b": [\n{rows}\n    ]\n}}'
        )
        shown = body(admitted(text).text)[0]
        assert '"a": 1.1000000000000000000001' in shown
        assert '"a": 12345678901234567890123' in shown

    def test_a_long_array_keeps_ends_failures_and_strangers(self) -> None:
        """The usual items are counted with their keys; a failed one, an odd one and the last are there."""
        items: list[dict[str, object]] = [{"id": n, "state": "done", "note": "all well " * 4} for n in range(400)]
        items[200] = {"id": 200, "state": "broken", "note": "error: disk is full"}
        items[300] = {"id": 300, "state": "done", "note": "ok", "extra": [1, 2]}
        shown = json.loads("\n".join(body(admitted(json.dumps(items, indent=1)).text)))
        kept = [item["id"] for item in shown if isinstance(item, dict)]
        assert kept == [*range(kept[-4] + 1), 200, 300, 399] and LOW.max_items <= len(kept) < 200
        described = "of 400 items not shown; id 0 to 399; state: done (399), broken (1)"
        assert any(described in item for item in shown if isinstance(item, str))

    def test_records_in_lines_keep_their_ids(self) -> None:
        """Of a very long record only its long texts are cut."""
        line = json.dumps({"id": "a91c-77", "size": 4096, "text": "words and words " * 400})
        found = admitted("\n".join([line, "", line.replace("a91c-77", "b02d-13")]))
        assert '"id": "a91c-77"' in found.text
        assert '"size": 4096' in found.text
        assert '"id": "b02d-13"' in found.text


class TestLogs:
    def test_similar_lines_are_counted(self) -> None:
        """Lines that differ in digits only: the first, the last, and how many lie between."""
        lines = [f"12:00:{n:02} worker {n} took {n * 7} ms for the job" for n in range(60)]
        found = admitted("\n".join(lines))
        assert found.kind == "log"
        assert body(found.text)[0] == f"{lines[0]} ⋯ 58 alike"
        assert lines[-1] in found.text
        assert lines[30] not in found.text

    def test_failures_and_warnings_stay(self) -> None:
        """Anywhere in a long log, with the lines around a failure."""
        words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
        lines = [f"{words[n % 8]} {words[n // 8 % 8]} {words[n // 64 % 8]} step{'x' * (n % 11)}" for n in range(500)]
        lines[200] = "fatal: the index is locked"
        lines[300] = "warning: 3 things look odd"
        found = admitted("\n".join(lines))
        shown = body(found.text)
        assert "fatal: the index is locked" in shown
        assert "warning: 3 things look odd" in shown
        assert lines[199] in shown
        assert lines[0] in shown
        assert lines[-1] in shown

    def test_a_very_long_line_keeps_its_ends_and_what_failed(self) -> None:
        """The middle of a line of ten thousand characters is left out; a failure in it is shown."""
        line = "begin " + "filler " * 1500 + "error: no space left " + "filler " * 1500 + "the end"
        found = admitted(f"{line}\nshort\n")
        assert found.text.startswith("begin filler")
        assert "error: no space left" in found.text
        assert "the end" in found.text

    def test_what_is_cut_is_not_called_complete(self) -> None:
        """A line without its middle counts as folded."""
        found = admitted(f"one\n{'word ' * 2_000}\ntwo", HARD)
        assert "1 of 3 lines folded" in found.text

    def test_numbers_with_their_keys_stay(self) -> None:
        """Of a short output, although other lines are similar."""
        totals = [f"total of part: {number}" for number in (17, 18, 19, 20)]
        found = admitted("\n".join([*totals, *("waiting for it" for _ in range(90))]))
        assert body(found.text)[:4] == totals


def deep_trace(frames: int) -> str:
    """Write a traceback."""
    lines = ["Traceback (most recent call last):"]
    for number in range(frames):
        lines += [f'  File "/app/module_{number}.py", line {number}, in call_{number}', f"    call_{number + 1}(value)"]
    return "\n".join([*lines, "ValueError: bad value 17"])


class TestTraces:
    def test_first_and_last_frames_stay(self) -> None:
        """And the exception."""
        found = admitted(deep_trace(60))
        assert found.kind == "trace"
        shown = body(found.text)
        assert shown[0] == "Traceback (most recent call last):"
        assert "in call_0" in shown[1]
        assert shown[-1] == "ValueError: bad value 17"
        assert any("in call_59" in line for line in shown)
        assert not any("in call_30" in line for line in shown)

    def test_other_languages_have_frames_too(self) -> None:
        """Java and JavaScript write them with "at"."""
        frames = [f"\tat org.example.Part{n}.call(Part{n}.java:{n})" for n in range(80)]
        found = admitted("\n".join(['Exception in thread "main" java.lang.IllegalStateException: closed', *frames]))
        shown = body(found.text)
        assert shown[0].endswith("IllegalStateException: closed")
        assert frames[0] in shown[1]
        assert frames[-1] in shown[-1]
        assert len(shown) <= LOW.max_frames + 3


GO_RUN = "\n".join(
    [line for n in range(40) for line in (f"=== RUN   TestPart{n}", f"--- PASS: TestPart{n} (0.0{n % 10}s)")]
    + ["=== RUN   TestBroken", "    part_test.go:17: want 3, got 4", "--- FAIL: TestBroken (0.01s)"]
    + ["coverage: 85.2% of statements", "FAIL\texample.org/part\t0.213s", "ok  \texample.org/other\t0.100s"]
)


class TestSuites:
    def test_failures_stay_and_passed_tests_are_named(self) -> None:
        """Every test name stays near its result."""
        found = admitted(GO_RUN)
        assert found.kind == "test run"
        shown = body(found.text)
        for line in (
            "    part_test.go:17: want 3, got 4",
            "--- FAIL: TestBroken (0.01s)",
            "FAIL\texample.org/part\t0.213s",
        ):
            assert line in shown
        assert "coverage: 85.2% of statements" in shown
        for number in range(40):
            line = next(line for line in shown if f"TestPart{number} " in f"{line} ")
            assert line.startswith("--- PASS:")
            assert len(line) < 200
        assert "=== RUN" not in found.text

    @pytest.mark.parametrize(
        ("line", "label"),
        [
            ("tests/test_a.py::test_{} PASSED                    [ 10%]", "PASSED"),
            ("test module::case_{} ... ok", "ok: test"),
            ("  ✓ does thing number {} (5 ms)", "✓"),
            ("ok  \texample.org/package/{}\t0.{}s", "ok"),
        ],
    )
    def test_other_runners_are_known(self, line: str, label: str) -> None:
        """By the shape of their lines."""
        lines = [line.replace("{}", str(n)) for n in range(50)]
        found = admitted("\n".join([*lines, "1 failed, 50 passed in 3.1s"]))
        assert found.kind == "test run"
        assert body(found.text)[0].startswith(f"{label} ")
        assert "1 failed, 50 passed in 3.1s" in found.text

    def test_a_second_run_points_to_the_first(self) -> None:
        """Only the differences are repeated."""
        seen = Seen()
        first = admit(GO_RUN, reference="m0001.0", settings=LOW, seen=seen)
        assert first is not None
        second = admit(GO_RUN.replace("0.213s", "0.987s"), reference="m0002.0", settings=LOW, seen=seen)
        assert second is not None
        assert second.tokens_after < first.tokens_after / 2
        assert "as in m0001.0" in second.text
        assert "--- FAIL: TestBroken (0.01s)" in second.text


DIFF = """diff --git a/src/a.py b/src/a.py
index 1111111..2222222 100644
--- a/src/a.py
+++ b/src/a.py
@@ -1,9 +1,9 @@ def work():
 unchanged line one of the file
 unchanged line two of the file
 unchanged line three of the file
-the old line that went
+the new line that came
 unchanged line four of the file
 unchanged line five of the file
 unchanged line six of the file
"""


class TestDiffs:
    def test_every_changed_line_stays(self) -> None:
        """Files, hunks and changes are there; what did not change is not."""
        found = admitted(DIFF * 3, msgspec.structs.replace(LOW, diff_context=0))
        assert found.kind == "diff"
        shown = body(found.text)
        assert shown[:4] == [
            "diff --git a/src/a.py b/src/a.py",
            "@@ -1,9 +1,9 @@ def work():",
            "-the old line that went",
            "+the new line that came",
        ]
        assert "unchanged" not in found.text

    def test_context_is_a_setting(self) -> None:
        """Lines on either side, as many as asked for."""
        found = admitted(DIFF * 3)
        assert "unchanged line three of the file" in found.text
        assert "unchanged line two of the file" not in found.text

    def test_a_message_before_the_diff_stays(self) -> None:
        """A commit is shown with its words."""
        found = admitted(f"commit 0123456789abcdef\nAuthor: A <a@example.org>\n\n    Say why\n\n{DIFF * 3}", HARD)
        assert body(found.text)[0] == "commit 0123456789abcdef"
        assert "    Say why" in found.text

    def test_added_lines_that_were_written_before_are_pointed_to(self) -> None:
        """An agent that looks at its own change has just written it."""
        seen = Seen()
        new = [f"    value_{n} = compute(value_{n - 1}, {n})" for n in range(1, 30)]
        seen.add("m0001.1", new)
        text = "diff --git a/b.py b/b.py\n@@ -1,0 +1,29 @@\n" + "\n".join(f"+{line}" for line in new)
        assert "⋯ 29 lines as in m0001.1" in admitted(text, seen=seen).text
