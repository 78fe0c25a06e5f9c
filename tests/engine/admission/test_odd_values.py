"""Admission keeps what a reader looks for: records that differ, numbers that stand out, lines of another shape."""

from __future__ import annotations

import json
import random

import pytest

from kompakt.engine.admission import FIRM, GENTLE, AdmissionSettings, Admitted, admit
from kompakt.engine.admission.columns import far_records, read
from kompakt.model.phrases import is_admitted

LEVELS = pytest.mark.parametrize("level", [GENTLE, FIRM], ids=["gentle", "firm"])


def admitted(text: str, level: AdmissionSettings) -> Admitted:
    found = admit(text, reference="m1a2b", settings=level)
    assert found is not None
    assert is_admitted(found.text)
    return found


class TestColumns:
    def test_a_rare_value_is_odd(self) -> None:
        """In a column with one usual value, and in a column of few values."""
        values = {"state": dict.fromkeys(range(50), "up") | {17: "down"}}
        assert read(values, 50, 3) == ({17}, "state: up (49), down (1)")

    def test_a_number_far_away_is_odd_and_extremes_stand_out(self) -> None:
        """Numbers far away come first, then the greatest and the least, up to the limit."""
        values = {"ms": {place: str(place * 37 % 101) for place in range(100)} | {41: "9000", 60: "-3"}}
        assert read(values, 100, 1)[0] == {41}
        odd, said = read(values, 100, 8)
        assert odd == {41, 60} and said == "ms -3 to 9000"

    def test_a_counter_has_no_odd_number(self) -> None:
        """Ids and times that rise from record to record are not compared."""
        values = {"id": {place: str(place**3) for place in range(100)}}
        assert read(values, 100, 8)[0] == set() and far_records(values, 8) == set()

    def test_values_that_all_differ_are_not_odd(self) -> None:
        """A name of its own is nothing special."""
        values = {"name": {place: f"n{place}" for place in range(100)}}
        assert read(values, 100, 8) == (set(), "name: 100 values")


class TestTables:
    @LEVELS
    def test_a_row_with_a_number_far_away_stays(self, level: AdmissionSettings) -> None:
        """The range of a column names the number, and the row that holds it is there."""
        rows = [f"p{i},{1_000_000 if i == 700 else i * 7 % 90},ok" for i in range(1_500)]
        found = admitted("\n".join(["part,weight,state", *rows]), level)
        assert "weight 0 to 1000000" in found.text and "\np700,1000000,ok\n" in found.text

    @LEVELS
    def test_columns_drawn_with_lines(self, level: AdmissionSettings) -> None:
        """Rows between drawn lines are rows of a table; text around the table stays."""
        rows = [f"│ {i:5} │ {'lost' if i == 222 else 'found':7} │ {i * 31 % 89:4} │" for i in range(400)]
        box = ["query of 400 rows", "┌───────┬─────────┬──────┐", "│ id    │ state   │ size │", *rows]
        found = admitted("\n".join([*box, "└───────┴─────────┴──────┘", "elapsed: 12 ms"]), level)
        assert found.kind == "table" and "alike" not in found.text
        assert rows[222] in found.text and "state: found (399), lost (1)" in found.text
        assert found.text.startswith("query of 400 rows\n") and "\nelapsed: 12 ms\n" in found.text

    @LEVELS
    def test_columns_aligned_with_spaces(self, level: AdmissionSettings) -> None:
        """A header in capitals makes a table of similar lines."""
        rows = [f"web-{i:04}   {'Evicted' if i == 99 else 'Running':9} {i % 3}   {i}d" for i in range(300)]
        found = admitted("\n".join(["NAME       STATUS    RESTARTS   AGE", *rows]), level)
        assert found.kind == "table" and rows[99] in found.text
        assert "STATUS: Running (299), Evicted (1)" in found.text

    def test_a_table_that_is_shown_whole_is_not_folded_as_a_log(self) -> None:
        """Below the limit all rows stay, though they differ in digits only."""
        rows = [f"web-{i:04}   Running   {i % 3}   {i}d" for i in range(GENTLE.max_table_rows)]
        assert (
            admit("\n".join(["NAME       STATUS    RESTARTS   AGE", *rows]), reference="m1a2b", settings=GENTLE) is None
        )

    @LEVELS
    def test_a_first_row_of_data_is_no_header(self, level: AdmissionSettings) -> None:
        """A number in the first row names no column, and the row counts as a row."""
        rows = [f"{i * 37 % 90}\tsrc/module_{i}.py" for i in range(300)]
        found = admitted("\n".join(rows), level)
        assert "of 300 rows not shown; column 1 0 to 89; column 2: 300 values" in found.text

    def test_times_with_commas_make_no_table(self) -> None:
        """Lines of a log with one comma each are lines of a log."""
        lines = [f"2026-01-05 12:00:{i % 60:02},{i:03} worker picked job {i}" for i in range(300)]
        assert admitted("\n".join(lines), GENTLE).kind == "log"


class TestJson:
    @LEVELS
    def test_an_odd_value_inside_an_object_stays(self, level: AdmissionSettings) -> None:
        """The values of objects inside an item count as values of the item."""
        items = [
            {
                "id": f"a{i:04}",
                "quota": {"used": 99_000 if i == 333 else i * 37 % 500, "on": i != 444},
                "text": "x" * 40,
            }
            for i in range(600)
        ]
        found = admitted(json.dumps({"items": items}, indent=1), level)
        assert '"a0333"' in found.text and '"a0444"' in found.text
        assert (
            "of 600 items not shown; id: 600 values; quota.used 0 to 99000; quota.on: true (599), false (1)"
            in found.text
        )

    def test_as_many_items_as_fit_are_shown(self) -> None:
        """A value a little above the limit loses little."""
        items = [{"id": f"a{i:04}", "text": "some words that say nothing " * 3} for i in range(130)]
        text = json.dumps(items)
        assert len(text) > GENTLE.max_json_tokens * 4
        found = admitted(text, GENTLE)
        assert sum(f'"a{i:04}"' in found.text for i in range(130)) > 4 * GENTLE.max_items

    def test_items_without_keys_are_counted(self) -> None:
        """Lists of lists have nothing to describe."""
        found = admitted(json.dumps([[["a" * 30, "b" * 30]] for _ in range(900)]), GENTLE)
        assert 'of 900 items not shown"' in found.text

    def test_long_texts_are_cut_before_items_are_left_out(self) -> None:
        """Every item says something; the middle of its text says less."""
        found = admitted(json.dumps([{"id": f"a{i:03}", "text": "word " * 200} for i in range(30)]), GENTLE)
        assert all(f'"a{i:03}"' in found.text for i in range(30))


RECORDS = [
    {
        "host": "api-7.shop.example",
        "service": "orders",
        "level": "error" if i in (120, 121, 122, 300) else "info",
        "ms": 45_000 if i == 500 else i * 37 % 90,
        "trace": f"t{i:05}",
    }
    for i in range(700)
]


class TestJsonLines:
    @LEVELS
    def test_failed_and_odd_lines_stay_and_shared_fields_are_written_once(self, level: AdmissionSettings) -> None:
        """Several errors are errors, and one slow request is the one to look at."""
        found = admitted("\n".join(map(json.dumps, RECORDS)), level)
        assert found.kind == "json" and found.text.count("api-7.shop.example") == 1
        assert all(f'"t{i:05}"' in found.text for i in (0, 120, 121, 122, 300, 500, 699))
        assert "of 700 lines not shown; level: info (696), error (4); ms 0 to 45000" in found.text

    def test_records_that_cannot_be_written_as_they_came_keep_their_lines(self) -> None:
        """A number is not written in another way to save a field."""
        line = '{"host": "api-7.shop.example", "rate": 1.50, "trace": "TRACE"}'
        text = "\n".join(line.replace("TRACE", f"t{i:05}") for i in range(900))
        assert "1.50" not in json.dumps(json.loads(line))
        assert "every line also has" not in admitted(text, GENTLE).text

    def test_a_line_that_is_cut_off_is_kept(self) -> None:
        """Tools cut the end of their output; what is left of it is shown."""
        lines = [json.dumps(record) for record in RECORDS[:200]]
        found = admitted("\n".join([*lines, lines[0][:40], "... [6 lines truncated] ..."]), GENTLE)
        assert found.kind == "json" and f"\n{lines[0][:40]}\n... [6 lines truncated] ...\n" in found.text


class TestLogs:
    @LEVELS
    def test_similar_lines_with_a_number_far_away_stay(self, level: AdmissionSettings) -> None:
        """One request of a thousand took a minute."""
        lines = [
            f"12:{i // 60:02}:{i % 60:02} GET /items took {60_000 if i == 777 else i * 37 % 80} ms"
            for i in range(1_000)
        ]
        found = admitted("\n".join(lines), level)
        assert found.kind == "log" and lines[777] in found.text and lines[500] not in found.text

    @LEVELS
    def test_lines_of_a_long_log_that_differ_in_ids_are_similar(self, level: AdmissionSettings) -> None:
        """Ids with letters do not push the one other line out of a long log."""
        dice = random.Random(3)
        lines = [f"uploaded object {dice.getrandbits(40):010x} to bucket media-{i % 9}" for i in range(900)]
        lines[450] = "bucket media-3 was switched to read only by the operator"
        found = admitted("\n".join(lines), level)
        assert lines[450] in found.text and "alike" in found.text and found.tokens_after < 400

    def test_lines_that_are_only_ids_are_not_similar(self) -> None:
        """An id line says its id, also where a long log is folded."""
        dice = random.Random(4)
        ids = [f"oid {dice.getrandbits(64):016x}z" for _ in range(12)]
        found = admitted("\n".join([*ids, *(f"copied the file {i:x}f to the archive" for i in range(400))]), FIRM)
        assert all(line in found.text for line in ids[:10])

    @LEVELS
    def test_a_history_of_commits_keeps_ids_dates_and_subjects(self, level: AdmissionSettings) -> None:
        """Bodies and lists of files go first."""
        blocks = [
            f"commit {i * 7_919_191:040x}\nAuthor: A. Ray <ray@example.org>\nDate:   2026-02-{i % 28 + 1:02}\n\n"
            f"    Subject of change number {i}\n\n" + "\n".join(f" src/{i}/file_{n}.py | {n} +-" for n in range(12))
            for i in range(60)
        ]
        found = admitted("\n".join(blocks), level)
        assert all(f"commit {i * 7_919_191:040x}\n" in found.text for i in range(60))
        assert all(f"    Subject of change number {i}" in found.text for i in range(60))

    @LEVELS
    @pytest.mark.parametrize(
        "line, report",
        [
            ("文件 {} 已处理", "无法连接到节点 {}"),
            ("請求書 {} を作成しました", "請求書 {} を作成できませんでした"),
            ("Auftrag {} angenommen", "Auftrag {} konnte nicht gespeichert werden"),
            ("fichier {} lu", "impossible de lire le fichier {}"),
            ("archivo {} leído", "no se pudo leer el archivo {}"),
            ("файл {} прочитан", "не удалось прочитать файл {}"),
        ],
    )
    def test_what_could_not_be_done_stays_in_any_language(
        self, level: AdmissionSettings, line: str, report: str
    ) -> None:
        """A refusal or an inability is a failure, whichever word a language has for it."""
        lines = [(report if i % 100 == 42 else line).format(i) for i in range(900)]
        found = admitted("\n".join(lines), level)
        assert all(report.format(i) in found.text for i in range(42, 900, 100))

    def test_an_output_of_one_long_line_is_shown_up_to_the_limit(self) -> None:
        """One line of a large output may be as long as a large value."""
        line = " ".join(f"{{id:{i} state:open}}" for i in range(2_000))
        assert 3_000 < len(admitted(line, GENTLE).text) <= GENTLE.max_json_tokens * 4


class TestTerminal:
    @LEVELS
    def test_of_a_redrawn_line_the_last_state_and_other_words_stay(self, level: AdmissionSettings) -> None:
        """A progress bar says one thing; a message between its states says another."""
        states = [f"fetch {percent}% [{'=' * (percent // 4)}>]" for percent in range(100)]
        states[50] = "fetch: connection lost, trying mirror b"
        found = admitted("start\n" + "\r".join([*states, "fetch 100% done"]) + "\nend", level)
        assert "connection lost, trying mirror b" in found.text and "fetch 100% done" in found.text
        assert "fetch 42%" not in found.text and "redrawn 98 times" in found.text

    def test_colours_go_and_words_stay(self) -> None:
        """Control sequences are layout."""
        lines = [
            f"\x1b[32m✓\x1b[0m \x1b[1mcompiled\x1b[22m {word} \x1b[38;5;244min time\x1b[0m"
            for word in "abcdefghijklmnop" * 3
        ]
        found = admitted("\n".join(f"{line} {'xyz'[i % 3] * (i + 1)}" for i, line in enumerate(lines)), FIRM)
        assert "\x1b" not in found.text and "✓ compiled a in time" in found.text

    def test_line_ends_of_windows_are_not_redrawn_lines(self) -> None:
        """A carriage return before a line break ends a line."""
        text = "\r\n".join(f"{word} stays" for word in ("alpha", "beta", "gamma", "delta") * 80)
        found = admit(text, reference="m1a2b", settings=FIRM)
        assert found is None or "redrawn" not in found.text


class TestOtherOutputs:
    @LEVELS
    def test_a_long_listing_states_common_values_once(self, level: AdmissionSettings) -> None:
        """Another mode, owner or day is written with its file."""
        rows = [f"-rw-r--r-- 1 web web {i * 10} 2026-03-01 10:{i % 60:02} page_{i}.html" for i in range(90)]
        rows[40] = "-rwsr-xr-x 1 root root 400 2019-07-30 04:00 page_40.html"
        found = admitted("\n".join(["total 90", *rows]), level)
        assert "unless noted: files -rw-r--r-- web web 2026-03-01" in found.text
        assert "\npage_39.html 390\npage_40.html 400 -rwsr-xr-x root root 2019-07-30\n" in found.text

    @LEVELS
    def test_a_skipped_test_keeps_its_reason(self, level: AdmissionSettings) -> None:
        """Skipped tests are listed with their reason."""
        lines = [f"tests/test_a.py::test_{i} PASSED   [ {i}%]" for i in range(90)]
        lines[50] = "tests/test_a.py::test_50 SKIPPED (needs a licence)   [ 50%]"
        assert "SKIPPED tests/test_a.py::test_50 (needs a licence)" in admitted("\n".join(lines), level).text

    def test_lines_around_matches_stay_while_there_is_room(self) -> None:
        """Of a file with more lines than the limit, those next to the matches are shown."""
        lines = [
            f"src/a.py{':' if at == 5 else '-'}{block * 100 + at}{':' if at == 5 else '-'}    step {block} {at}"
            for block in range(4)
            for at in range(11)
        ]
        found = admitted("\n".join(lines), GENTLE)
        assert found.kind == "search" and "src/a.py ⋯ 14 more" in found.text
        assert "304-step 3 4\n305:step 3 5\n306-step 3 6\n" in found.text and "\n310-" not in found.text
