"""Admission of data: tables, HTML, logs in other languages, JSON items that differ, sources of ordinary size."""

from __future__ import annotations

import json

import pytest

from kompakt.engine.admission import FIRM, GENTLE, AdmissionSettings, Admitted, admit

LEVELS = pytest.mark.parametrize("level", [GENTLE, FIRM], ids=["gentle", "firm"])
CSV = "id,name,price,status\n" + "\n".join(
    f"{i},item {i % 97},{i * 0.5},{'refunded' if i == 1377 else 'paid'}" for i in range(1, 2_001)
)


def admitted(text: str, level: AdmissionSettings) -> Admitted:
    found = admit(text, reference="m1a2b", settings=level)
    assert found is not None
    return found


class TestTables:
    @LEVELS
    def test_head_tail_count_and_ranges_stay(self, level: AdmissionSettings) -> None:
        """The omitted rows are described by column, and no row counts as a repetition."""
        found = admitted(CSV, level)
        assert found.kind == "table" and "alike" not in found.text
        assert found.text.startswith("id,name,price,status\n1,item 1,0.5,paid\n")
        assert "\n2000,item 60,1000.0,paid\n" in found.text
        assert "of 2000 rows not shown; id 1 to 2000; name: 97 values; price 0.5 to 1000.0;" in found.text
        assert "status: paid (1999), refunded (1)" in found.text

    @LEVELS
    def test_a_row_that_differs_stays(self, level: AdmissionSettings) -> None:
        """A value that only one row has is what the reader looks for; so is a row of another shape."""
        broken = CSV.replace("1500,item 45,750.0,paid", "1500,item 45,750.0,paid,extra cell")
        found = admitted(broken, level)
        assert (
            "\n1377,item 19,688.5,refunded\n" in found.text and "\n1500,item 45,750.0,paid,extra cell\n" in found.text
        )

    @pytest.mark.parametrize("delimiter", ["\t", ";", " | "])
    def test_other_delimiters(self, delimiter: str) -> None:
        """Tabs, semicolons and bars divide cells too."""
        rows = [("day", "berth", "depth"), *((f"2024-05-{i % 28 + 1:02}", f"C{i % 9}", str(i)) for i in range(400))]
        found = admitted("\n".join(delimiter.join(row) for row in rows), FIRM)
        assert found.kind == "table" and "depth 0 to 399" in found.text and "day 2024-05-01 to 2024-05-28" in found.text

    def test_what_is_no_table(self) -> None:
        """Sentences and code have commas too."""
        prose = "\n".join(f"In the harbour, near pier {i}, the tide turned and everybody saw it." for i in range(300))
        code = "\n".join(f"    call_{i}(first, second_{i});" for i in range(300))
        for text in (prose, code):
            found = admit(text, reference="m1a2b", settings=FIRM)
            assert found is None or found.kind != "table"


class TestHtml:
    @LEVELS
    def test_a_page_becomes_its_text(self, level: AdmissionSettings) -> None:
        """Styles and scripts go; title, headings, paragraphs, links and tables stay."""
        body = "".join(f"<p>Notice {i}: the <b>northern lock</b> &amp; pier {i} close.</p>\n" for i in range(40))
        page = (
            f"<!DOCTYPE html>\n<html><head><title>Hull</title><style>{'.x{color:red}' * 300}</style>"
            f"<script>{'var hidden = 1;' * 200}</script></head><body><h2>Notices</h2>{body}"
            '<a href="/tides">Tides</a><table><tr><th>berth</th><td>C14</td></tr></table></body></html>'
        )
        found = admitted(page, level)
        assert found.kind == "html"
        assert "color:red" not in found.text and "var hidden" not in found.text
        assert "Hull" in found.text and "## Notices" in found.text and "Tides </tides>" in found.text
        assert all(f"Notice {i}: the northern lock & pier {i} close." in found.text for i in range(40))
        assert "| berth | C14" in found.text

    def test_broken_markup(self) -> None:
        """A page that never closes its elements is read to its end."""
        found = admitted("<html><body><p>open " + "<div><p>words here\n" * 400, FIRM)
        assert "words here" in found.text


class TestLogs:
    @LEVELS
    @pytest.mark.parametrize(
        "line, failure",
        [
            ("処理を開始しました 件数={}", "エラー: 接続に失敗しました 番号={}"),
            ("обработан файл {}", "Ошибка: файл {} повреждён"),
            ("Datei {} gelesen", "Fehler beim Lesen der Datei {}"),
            ("fichier {} lu", "échec de la lecture du fichier {}"),
            ("文件 {} 已处理", "文件 {} 处理失败"),
        ],
    )
    def test_failures_stay_in_any_language(self, level: AdmissionSettings, line: str, failure: str) -> None:
        """Every line that reports a failure is shown, even if the lines are similar."""
        lines = [(failure if i % 100 == 42 else line).format(i) for i in range(900)]
        found = admitted("\n".join(lines), level)
        assert all(failure.format(i) in found.text for i in range(42, 900, 100))


class TestJson:
    @LEVELS
    def test_the_item_that_differs_stays(self, level: AdmissionSettings) -> None:
        """The one value that hardly any other item has is shown, for texts and for flags."""
        items = [{"id": i, "status": "suspended" if i == 733 else "active", "ok": i != 401} for i in range(1_000)]
        found = admitted(json.dumps(items, indent=1), level)
        assert '"suspended"' in found.text and '"id": 733' in found.text and '"id": 401' in found.text

    def test_items_that_all_differ_are_sampled(self) -> None:
        """If every item has its own value, none is an exception."""
        found = admitted(json.dumps([{"id": i, "name": f"n{i}"} for i in range(1_000)], indent=1), FIRM)
        assert '"n500"' not in found.text


def test_a_source_of_600_lines_stays_whole_for_an_agent_at_work() -> None:
    """The gentle level folds only what is far larger than an ordinary file."""
    body = "    value = request.get({0})\n    if value > limit:\n        return value - {0}\n    return None"
    text = "\n".join(
        f'def handler_{i}(request, limit={i}):\n    """Handle {i}."""\n{body.format(i)}' for i in range(100)
    )
    assert admit(text, reference="m1a2b", settings=GENTLE) is None
