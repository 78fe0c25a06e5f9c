"""Recall: messages are found by their words and restored byte for byte by their reference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from time import process_time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.histories import FORMATS, bodies, plain

import kompakt
from kompakt.engine.pivot.pivot import render as pivot
from kompakt.engine.recall import Index, Memory
from kompakt.engine.recall.passages import LINE_CHARS, exact, line_ends, passages_of
from kompakt.engine.recall.restore import Reference, read_reference
from kompakt.errors import UnknownFormat, UsageError
from kompakt.model.messages import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult
from kompakt.model.phrases import pruned_placeholder
from kompakt.model.references import References
from kompakt.model.tokens import Counter, counter_for

LONG = "\n".join(f"{number} harbour row {number * 7}" for number in range(2_000))


@pytest.fixture(scope="module", autouse=True)
def _by_words_only() -> Iterator[None]:
    """Search by words, whether or not the extra for meaning is installed here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kompakt.engine.recall.index.available", lambda: False)
        yield


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def assistant(*parts: Part | str) -> Message:
    return Message("assistant", tuple(Text(part) if isinstance(part, str) else part for part in parts))


def tool(output: str, call_id: str = "c1", **more: Any) -> Message:
    return Message("tool", (ToolResult(call_id, output, **more),))


def memory(*messages: Message) -> Memory:
    return Memory(messages, counter=Counter())


def size(text: str) -> int:
    return Counter().text(text)


def talk(*turns: str) -> list[Message]:
    """Return a conversation of alternating user and assistant messages."""
    return [user(turn) if place % 2 == 0 else assistant(turn) for place, turn in enumerate(turns)]


FILLER = [f"Nothing of note about item {number}, all calm." for number in range(60)]


class TestSearch:
    def test_finds_by_words_in_other_forms(self) -> None:
        """Plural, -ing and -ed meet; so do camel case, snake case and paths with their pieces."""
        archive = memory(
            *talk(*FILLER, "The crane lifted two containers.", "See src/tide/parse_row.py and openHarbourGate.")
        )
        for query in (
            "lifting a container",
            "the row parser tide",
            "harbour gate",
            "parse_row",
            "src/tide/parse_row.py",
        ):
            assert "containers" in archive.recall(query).text or "openHarbourGate" in archive.recall(query).text, query
        assert "parse_row.py" in archive.recall("tide row").hits[0].text
        assert "lifted" in archive.recall("lifts containers").hits[0].text

    def test_an_answer_is_found_by_its_question(self) -> None:
        """The words of a question count for its answer, which does not repeat them."""
        archive = memory(*talk(*FILLER, "How often does the ferry to Hull sail?", "Three times a week.", *FILLER))
        assert "Three times a week." in archive.recall("ferry Hull how often", tokens=60).text

    def test_many_short_turns_fit_one_answer(self) -> None:
        """Turns are whole, in the order of the history, and each has a reference."""
        turns = [f"Berth {number} is for the tug Albatross." for number in range(10)]
        found = memory(*talk(*turns, *FILLER)).recall("tug Albatross berth")
        assert all(turn in found.text for turn in turns)
        assert [found.text.index(turn) for turn in turns] == sorted(found.text.index(turn) for turn in turns)
        assert set(References(talk(*turns)).names) <= set(found.references)

    def test_who_is_asked_about_speaks_first(self) -> None:
        """In a chat with speakers' names, the name in the question has more weight."""
        lines = [f"{name}: I painted boat {number}" for number in range(5) for name in ("Ada", "Bo")]
        assert all(hit.text.startswith("Bo") for hit in memory(*talk(*lines)).recall("What did Bo paint?").hits[:5])

    @pytest.mark.parametrize("stamp", ["[9:10 am on 8 May, 2023]", "2023-05-08 09:10", "Monday, May 8th 2023"])
    def test_a_date_applies_to_later_messages(self, stamp: str) -> None:
        """A time stamp at the start of a session is found by its date, some turns later."""
        early = [f"[1:00 pm on 2 March, 2021]\nWe met at the quay, day {number}" for number in range(20)]
        archive = memory(
            *talk(*early, f"{stamp}\nHello again", "And hello", "I sold the red dinghy", "We met at the quay")
        )
        for query in ("What happened on 8 May 2023?", "quay in May 2023", "2023-05-08"):
            assert "red dinghy" in archive.recall(query, tokens=80).text, query

    def test_long_outputs_are_found_by_passage(self) -> None:
        """The passage comes with its lines, which can be asked for, and not the whole output."""
        call = assistant(ToolCall("c1", "read_log", {"path": "tide.log"}))
        archive = memory(user("go"), call, tool(LONG.replace("1234 harbour", "1234 lighthouse")))
        found = archive.recall("lighthouse")
        assert "1234 lighthouse" in found.text and "read_log result" in found.text
        reference = next(name for name in found.references if ":" in name)
        assert "1234 lighthouse" in archive.recall(reference).text

    def test_the_same_text_is_shown_once(self) -> None:
        """A file that was read five times does not fill the answer."""
        page = "\n".join(f"def moor_{number}(): return {number}" for number in range(8))
        found = memory(*[tool(page, f"c{number}") for number in range(5)], user("other moor note")).recall("moor")
        assert found.text.count("def moor_3") == 1 and "other moor note" in found.text

    def test_calls_are_searched_without_escapes(self) -> None:
        """The arguments of a call are words, whether the wire has them as text or as a value."""
        value = {"path": "a.py", "content": "first\nsecondword\nthird"}
        for input in (value, '{"path": "a.py", "content": "first\\nsecondword\\nthird"}'):
            found = memory(user("go"), assistant(ToolCall("c1", "write", input))).recall("secondword")
            assert "\nsecondword\n" in found.text

    def test_a_short_call_is_printed_in_one_line(self) -> None:
        call = Message("assistant", (ToolCall("c1", "read", {"path": "berths.py", "limit": 20}),))
        found = Memory([call], counter=counter_for(None)).recall("berths.py")
        assert found.text.endswith(" assistant calls: read path: berths.py, limit: 20")

    def test_an_answer_contains_passages_and_how_many_are_left(self) -> None:
        """No list of names takes room from the passages."""
        outputs = [tool(f"open valve_{n}_state in plant/unit{n}.cfg\n" + f"noise{n} " * 90, f"c{n}") for n in range(30)]
        found = memory(*outputs).recall("open valve", tokens=300)
        passages, _, last = found.text.rpartition("\n")
        assert last == "[kompakt] 29 more passages contain these words; add words to narrow the search."
        assert "[kompakt]" not in passages and passages.endswith(found.hits[-1].text.strip("\n")[-20:])
        assert 150 < size(found.text) <= 300

    def test_passages_without_a_word_of_the_query_do_not_fill_the_answer(self) -> None:
        """Forty logs share their lines with the only one that has the word."""
        rows = "\n".join(f"INFO request {row} ok" for row in range(12))
        logs = [tool(f"log of pod {at}\n{rows}", f"c{at}") for at in range(40)]
        logs[20] = tool(f"log of pod 20\n{rows}\nERROR connection refused on port 9099", "c20")
        found = memory(user("Why does the service fail?"), *logs).recall("9099", tokens=1_000)
        assert "port 9099" in found.hits[0].text
        assert found.text.count("log of pod") == 1 and "more passages" not in found.text

    def test_a_file_is_found_by_its_bare_name(self) -> None:
        """The content of a file ranks first for its name, also when the content never mentions the name."""
        mentions = [f"The config and the py files of app {number} are fine, config py config." for number in range(40)]
        archive = memory(
            *talk(*mentions),
            assistant(ToolCall("c1", "read", {"path": "src/app/config.py"})),
            tool("TIMEOUT = 30\nRETRIES = 4"),
            *talk(*mentions),
        )
        found = archive.recall("config.py")
        assert {hit.label for hit in found.hits[:2]} == {"assistant calls", "read result of src/app/config.py"}
        assert "RETRIES = 4" in found.text

    @pytest.mark.parametrize("query", ["C14", "berth C14", "which berth is C14"])
    def test_an_exact_name_is_found_without_similar_ones(self, query: str) -> None:
        """Sixty pages have "berth" and "C" in them. Room that is left is filled with neighbours only."""
        pages = [tool(f"Page {at}: berth C{at} has a depth of {3 * at} m.", f"c{at}") for at in range(60)]
        found = memory(user("Read all pages about berths."), *pages).recall(query, tokens=1_000)
        assert "berth C14 has" in found.hits[0].text
        assert len(found.hits) <= 5 and "berth C1 " not in found.text

    def test_passages_that_match_well_without_the_name_are_found_too(self) -> None:
        """A query has the name of a file and words of what was said about it elsewhere."""
        said = user("The migration locks the invoices table for hours, so it runs at night.")
        others = [tool(f"listing {at} of other things", f"c{at}") for at in range(20)]
        named = tool("src/migrate.py has 80 lines", "c99")
        found = memory(said, *others, named).recall("why does migrate.py lock the invoices table at night").text
        assert "for hours" in found and "80 lines" in found

    def test_each_part_of_a_large_output_names_its_command(self) -> None:
        """A passage from the middle of an output says which command printed it."""
        call = assistant(ToolCall("c1", "bash", {"command": ["bash", "-lc", "make tide-report"]}))
        archive = memory(user("go"), call, tool(LONG))
        found = archive.recall("1500 harbour row")
        assert all("bash result of make tide-report" in hit.label for hit in found.hits if ":" in hit.reference)
        assert any("1500 harbour" in hit.text for hit in found.hits)

    def test_the_latest_run_of_a_command_ranks_above_older_runs(self) -> None:
        """The same command was run three times with other numbers; the last run comes first."""
        runs: list[Message] = []
        for number, failures in enumerate((7, 5, 2)):
            runs.append(assistant(ToolCall(f"c{number}", "bash", {"command": "pytest tests/quay"})))
            runs.append(tool(f"quay suite: {failures} failed", f"c{number}"))
        found = memory(*runs, *talk(*FILLER)).recall("quay suite failed")
        results = [hit.text for hit in found.hits if "result" in hit.label]
        assert results[0] == "quay suite: 2 failed"
        assert "7 failed" in found.text

    def test_a_call_with_other_arguments_does_not_make_a_result_old(self) -> None:
        """A tool is called for two berths; both results are as good."""
        calls: list[Message] = []
        for number, berth in enumerate(("B12", "B14")):
            calls.append(assistant(ToolCall(f"c{number}", "tide", {"harbour": "Ostend", "berth": berth})))
            calls.append(tool(f"the depth at berth {berth} is {number + 4} metres", f"c{number}"))
        hits = memory(*calls, *talk(*FILLER)).recall("tide depth berth metres").hits
        shown = {hit.text: hit.score for hit in hits if "result" in hit.label}
        assert len(shown) == 2 and max(shown.values()) < 1.01 * min(shown.values())

    def test_the_label_of_a_result_has_the_arguments_of_its_call(self) -> None:
        call = assistant(ToolCall("c1", "search_flights", {"origin": "MIA", "seats": 2, "notes": "x" * 100}))
        found = memory(user("go"), call, tool("HAT232 leaves at one")).recall("HAT232")
        assert found.hits[0].label == "search_flights result of origin MIA, seats 2"

    def test_a_record_of_a_json_list_is_shown_whole(self) -> None:
        """Passages of a long line end between records."""
        rows = [
            {
                "flight": f"HAT{number}",
                "leaves": "13:00:00",
                "seats": {"economy": number, "business": 4},
                "price": {"economy": 100 + number},
            }
            for number in range(60)
        ]
        call = assistant(ToolCall("c1", "search_flights", {"origin": "MIA"}))
        text = memory(user("go"), call, tool(json.dumps(rows))).recall("HAT37 economy price", tokens=300).text
        assert json.dumps(rows[37]) in text

    def test_long_lines_are_divided_between_words(self) -> None:
        words = " ".join(f"harbour{number}" for number in range(200))
        ends = line_ends(words)
        assert all(words[end - 1] == " " for end in ends[:-1]) and ends[-1] == len(words)

    @pytest.mark.parametrize("query", ["--dry-run", "-v", "-- --dry-run option"])
    def test_a_query_may_start_with_a_dash(self, query: str) -> None:
        """An option of a command is a query like any other."""
        archive = memory(*talk(*FILLER, "Call it with --dry-run -v first"))
        assert "--dry-run" in archive.recall(query).hits[0].text

    def test_a_large_history_is_scanned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A history that is not indexed whole gives the same best passage, with the same reference."""
        call = assistant(ToolCall("c1", "read_log", {"path": "logs/tide.log"}))
        archive = memory(*talk(*FILLER), call, tool(LONG.replace("1234 harbour", "1234 lighthouse")), *talk(*FILLER))
        whole = {query: archive.recall(query).hits[0] for query in ("lighthouse", "1234 lighthouses", "tide.log")}
        monkeypatch.setattr("kompakt.engine.recall.memory.INDEX_CHARS", 1_000)
        monkeypatch.setattr("kompakt.engine.recall.memory.SCAN_CHARS", 20_000)
        for query, hit in whole.items():
            found = archive.recall(query).hits[0]
            assert (found.reference, found.text) == (hit.reference, hit.text) or query == "tide.log", query
        assert "tide.log" in archive.recall("tide.log").hits[0].label + archive.recall("tide.log").hits[0].text

    def test_texts_of_kompakt_are_not_content(self) -> None:
        """Pivots and placeholders of an earlier pass are not found, but the text beside them is."""
        question, summary = pivot("the walrus summary")
        archive = memory(question, summary, tool(pruned_placeholder("m7f3a.0", 900)), user("a walrus swam by"))
        assert archive.recall("walrus").references == (References([question, summary, *long_tail()]).names[-1],)
        assert not archive.recall("tokens left out original")

    def test_one_more_message_is_searched_too(self) -> None:
        """An index grows, and gives what an index made at once gives."""
        messages = talk(*FILLER, "the anchor is fouled")
        grown = memory(*messages[:30])
        grown.recall("anchor")
        for message in messages[30:]:
            grown.add(message)
        assert grown.recall("anchor fouled") == memory(*messages).recall("anchor fouled")

    def test_other_scripts(self) -> None:
        """Words without spaces between them are found too."""
        archive = memory(*talk("今日は天気がいいですね", "Волна у причала", "Die Fähre läuft aus"))
        assert "причала" in archive.recall("причала").hits[0].text
        assert "天気" in archive.recall("天気").hits[0].text
        assert "Fähre" in archive.recall("Fähre").hits[0].text

    def test_a_history_without_words(self) -> None:
        """Signs and words that say nothing leave nothing to find."""
        assert not memory(user("…"), assistant("!? the of")).recall("boat 0")

    def test_an_empty_result_is_reported(self) -> None:
        """A false answer with a text that a model can act on."""
        found = memory(user("go"), assistant(ToolCall("c1", "read", {"path": "quay/depth.csv"}))).recall("zebra")
        assert not found and found.references == () and "zebra" in found.text and "quay/depth.csv" in found.text
        assert memory().recall("zebra").references == ()


def long_tail() -> list[Message]:
    return [tool(pruned_placeholder("m7f3a.0", 900)), user("a walrus swam by")]


class TestFetch:
    def test_message_and_part(self) -> None:
        """The only part of a message has two names; both give its text and nothing else."""
        message = user("as it was\r\n\n  ")
        name = References([message]).names[0]
        for reference in (name, f"{name}.0", f" [{name}] ", f"`{name}.0`", f"recall {name}", f"{name}."):
            found = memory(message).recall(reference)
            assert (found.text, found.parts) == ("as it was\r\n\n  ", message.parts)

    def test_lines(self) -> None:
        """Some lines, one line, all from a line on."""
        message = tool("one\ntwo\nthree\nfour")
        name = References([message]).names[0]
        archive = memory(message)
        assert archive.recall(f"{name}.0:2-3").text == "two\nthree\n"
        assert archive.recall(f"{name}:2").text == "two\n"
        assert archive.recall(f"{name}:3-").text == "three\nfour"
        assert archive.recall(f"{name}:9-").text == ""
        assert archive.recall(f"{name}:0-99").text == "one\ntwo\nthree\nfour"

    @pytest.mark.parametrize("text", [LONG, "x" * 30_000, "é∑ " * 9_000, "a\n\n\n" * 3_000])
    @pytest.mark.parametrize("tokens", [250, 1000])
    def test_piece_by_piece(self, text: str, tokens: int) -> None:
        """A large text is returned in pieces that add up to the whole, each within its limit."""
        message = tool(text)
        archive, reference, pieces = memory(message), References([message]).names[0], ""
        while reference:
            found = archive.recall(reference, tokens=tokens)
            assert size(found.text) <= tokens and found.rest != reference
            pieces += found.text.partition("[kompakt] Lines ")[0] if found.rest else found.text
            reference = found.rest or ""
        assert pieces == text
        assert archive.recall(References([message]).names[0], tokens=None).text == text

    def test_a_limit_below_one_line(self) -> None:
        """The start of the line is returned; continuing gives the rest of that line."""
        message = tool("∑é" * 5_000)
        name = References([message]).names[0]
        found = memory(message).recall(name, tokens=20)
        assert found and "∑é∑é".startswith(found.text[:4]) and size(found.text) <= 20 and found.rest == f"{name}:1-"

    def test_several_parts(self) -> None:
        """A message of several parts comes with the name of each; what does not fit is named."""
        message = assistant(Reasoning("hm"), "words", ToolCall("c1", "read", {"a": 1}))
        archive, name = memory(message), References([message]).names[0]
        assert archive.recall(name).text == f'{name}.0 reasoning:\nhm\n{name}.1 text:\nwords\n{name}.2 call:\n{{"a":1}}'
        assert archive.recall(f"{name}.2").text == '{"a":1}'
        large = assistant("small", LONG, "last")
        found = memory(large).recall(References([large]).names[0], tokens=100)
        assert "small" in found.text and f"{References([large]).names[0]}.1" in found.text and size(found.text) <= 100

    def test_media(self) -> None:
        """A picture is described to a model and given as data to a program, also inside a result."""
        picture = Media("image", mime="image/png", data="QUJD" * 50)
        message = Message("tool", (ToolResult("c1", "a plan", media=(picture,)), picture))
        archive, name = memory(message), References([message]).names[0]
        assert archive.recall(f"{name}.1", tokens=None).text == picture.data
        assert "image/png" in archive.recall(f"{name}.1").text and picture.data not in archive.recall(f"{name}.1").text
        assert f"{name}.0.0" in archive.recall(f"{name}.0").text
        assert archive.recall(f"{name}.0", tokens=None).text == "a plan"
        assert archive.recall(f"{name}.0.0", tokens=None).text == picture.data
        assert not archive.recall(f"{name}.0.7")

    def test_a_call_comes_with_its_result(self) -> None:
        """The reference of a call restores both, within the tokens, and names the rest of a large result."""
        call = assistant(ToolCall("c1", "read_log", {"path": "tide.log"}))
        archive = memory(user("go"), call, tool("low water 04:10"), assistant("done"))
        names = References([user("go"), call, tool("low water 04:10")]).names
        found = archive.recall(names[1])
        assert "read_log" in found.text and '"tide.log"' in found.text and "low water 04:10" in found.text
        assert found.references == (names[1], names[2]) and len(found.parts) == 2
        assert archive.recall(names[1], tokens=None).text == '{"path":"tide.log"}'
        large = memory(user("go"), call, tool(LONG))
        (_, name, result) = References([user("go"), call, tool(LONG)]).names
        found = large.recall(name, tokens=200)
        assert "tide.log" in found.text and "0 harbour row 0" in found.text and size(found.text) <= 200
        assert found.rest is not None and found.rest.startswith(f"{result}:")
        assert large.recall(f"{name}:1235-1235").text == "1234 harbour row 8638\n"

    def test_results_of_parallel_calls(self) -> None:
        """Each call of a message is restored with its own result."""
        calls = assistant(ToolCall("a", "read", {"path": "a.txt"}), ToolCall("b", "read", {"path": "b.txt"}))
        history = [user("go"), calls, tool("bravo", "b"), tool("alpha", "a")]
        name = References(history).names[1]
        whole = memory(*history).recall(name).text
        assert "alpha" in whole and "bravo" in whole
        only = memory(*history).recall(f"{name}.1").text
        assert "bravo" in only and "alpha" not in only

    @pytest.mark.parametrize("query", ['{} "1500 harbour"', "{} grep 1500 harbour", '{} "harbours 1500"'])
    def test_words_inside_a_reference(self, query: str) -> None:
        """Words after a reference find the lines of that output, from the call or from the result."""
        call = assistant(ToolCall("c1", "read_log", {"path": "tide.log"}))
        history = [user("1500 harbour elsewhere"), call, tool(LONG)]
        for name in References(history).names[1:]:
            found = memory(*history).recall(query.format(name), tokens=300)
            assert "1500 harbour row" in found.text and "elsewhere" not in found.text
            assert found.references[0].startswith(References(history).names[2] + ":")

    def test_words_that_a_reference_does_not_contain(self) -> None:
        """The answer is false and names the reference."""
        name = References([user("quay")]).names[0]
        found = memory(user("quay"), assistant("zebra")).recall(f'{name} "zebra"')
        assert not found and name in found.text and "zebra" in found.text

    def test_unknown_references(self) -> None:
        """One that names nothing is searched for; one that names no part says which there are."""
        message = assistant("one", "two")
        name = References([message]).names[0]
        assert memory(message, user("see mffff for it")).recall("mffff").hits[0].text == "see mffff for it"
        assert not memory(message).recall("mffff.3:4-")
        found = memory(message).recall(f"{name}.7")
        assert not found and f"{name}.1" in found.text

    @pytest.mark.parametrize(
        ("text", "read"),
        [
            ("m7f3a", Reference("m7f3a")),
            ("m7f3a.0", Reference("m7f3a", 0)),
            ("m7f3a.2:5-9", Reference("m7f3a", 2, None, 5, 9)),
            ("m7f3a:5", Reference("m7f3a", None, None, 5, 5)),
            ("(m7f3a.1.2)", Reference("m7f3a", 1, 2)),
            ("m7f3a.1:31-", Reference("m7f3a", 1, None, 31, None)),
            ("m7f", None),
            ("made", None),
            ("m7f3a and more", None),
            ("", None),
        ],
    )
    def test_reading(self, text: str, read: Reference | None) -> None:
        """Texts that are references, and texts that are not."""
        assert read_reference(text) == read


class TestPromises:
    @pytest.mark.parametrize("format", FORMATS)
    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_every_part_is_restored(self, format: str, data: st.DataObject) -> None:
        """Every part of a history is restored byte for byte by the reference that ``compact`` prints."""
        history = kompakt.parse(data.draw(bodies(format)), format)
        names = References(history).names
        for index, message in enumerate(history):
            for number, part in enumerate(message.parts):
                found = kompakt.recall(history, f"{names[index]}.{number}", tokens=None)
                assert (found.text, found.parts) == (exact(part), (part,))

    @pytest.mark.parametrize("format", FORMATS)
    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_any_question_is_answered_within_its_tokens(self, format: str, data: st.DataObject) -> None:
        """No query raises, none gets more than it allows, and asked again it gets the same."""
        body = data.draw(bodies(format))
        words = st.sampled_from(str(body).split() or ["x"])
        query = data.draw(st.one_of(st.text(max_size=60), st.lists(words, max_size=8).map(" ".join)))
        tokens = data.draw(st.integers(1, 400))
        found = kompakt.recall(body, query, tokens=tokens, format=format)
        counter = counter_for(kompakt.parse(body, format).model)
        assert counter.scaled(counter.text(found.text)) == found.tokens <= tokens
        assert found == kompakt.recall(body, query, tokens=tokens, format=format)

    @settings(max_examples=100, deadline=None)
    @given(st.text(alphabet=st.sampled_from("ab é\n\r\u2028漢"), max_size=900).map(lambda text: text * 3))
    def test_lines_and_passages_cover_the_text(self, text: str) -> None:
        """Lines are cut nowhere but between them, and passages leave out nothing but blanks."""
        ends = line_ends(text)
        assert ends == sorted(set(ends)) and (ends[-1] if ends else 0) == len(text)
        assert all(end - start <= LINE_CHARS for start, end in zip([0, *ends], ends, strict=False))
        found = [passage for passage, _ in passages_of(tool(text), 0)]
        kept = "".join(text[passage.start : passage.end] for passage in found)
        assert "".join(kept.split()) == "".join(text.split())

    @pytest.mark.parametrize("format", FORMATS)
    def test_recall_restores_what_compact_removed(self, format: str) -> None:
        """Every reference of a report restores the original text."""
        body = plain.build(format, messages=60, seed=3, mean_chars=900)
        done = kompakt.compact(body, kompakt.count(body, format=format).total // 4, format=format)
        history = kompakt.parse(body, format)
        names = References(history)
        assert done.report.actions
        for action in done.report.actions:
            message = history[names.find(action.reference) or 0]
            for number, part in enumerate(message.parts):
                reference = f"{action.reference.partition('.')[0]}.{number}"
                assert done.recall(reference, tokens=None).text == exact(part)
                assert kompakt.recall(body, reference, tokens=None, format=format).text == exact(part)

    def test_references_of_a_repaired_history_are_known(self) -> None:
        """compact repairs first; what it then prints is found in the caller's own payload too."""
        call = {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        body = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "user", "content": "the heron stands there"},
        ]
        name = References(kompakt.parse(kompakt.repair(body).payload, "openai-chat")).names[-1]
        assert name not in References(kompakt.parse(body)).names
        assert kompakt.recall(body, name).text == "the heron stands there"
        assert kompakt.compact(body, 50_000).recall(name).text == "the heron stands there"


class TestSurface:
    def test_sources(self) -> None:
        """A payload, a list of ambiguous format, a history and a compaction give the same result."""
        body = {
            "messages": [{"role": "user", "content": "the heron stands"}, {"role": "assistant", "content": "so be it"}]
        }
        history = kompakt.parse(body, "openai-chat")
        done = kompakt.compact(body, 50_000, format="openai-chat")
        answers = [kompakt.recall(source, "heron") for source in (body, body["messages"], history, done)]
        assert answers[0] and all(answer == answers[0] for answer in answers)

    @pytest.mark.parametrize("tokens", [0, -1, True])
    def test_a_limit_that_leaves_no_room(self, tokens: int) -> None:
        """It is refused with the way out."""
        with pytest.raises(UsageError, match="positive"):
            kompakt.recall([{"role": "user", "content": "a"}], "a", tokens=tokens)

    def test_a_question_that_is_no_text(self) -> None:
        """It is refused."""
        with pytest.raises(UsageError, match="as text"):
            kompakt.recall([{"role": "user", "content": "a"}], {"query": "a"})  # type: ignore[arg-type]

    @pytest.mark.parametrize("format", FORMATS)
    def test_the_tool_is_accepted_by_its_provider(self, format: str) -> None:
        """A request that carries the definition has no problems, and the definition is the caller's own."""
        body = plain.build(format, messages=4)
        tool = kompakt.recall_tool(format)
        if format == "bedrock":
            body["toolConfig"] = {"tools": [tool]}
        else:
            body["tools"] = [tool]
        assert kompakt.check(body, format) == []
        assert '"query"' in str(tool).replace("'", '"')
        tool.clear()
        assert kompakt.recall_tool(format)

    def test_a_tool_for_no_format(self) -> None:
        """An unknown format is named."""
        with pytest.raises(UnknownFormat, match="telegram"):
            kompakt.recall_tool("telegram")

    def test_the_time_to_index_a_long_part_is_linear_in_its_length(self) -> None:
        """What is true of a whole part or call is worked out once, not for each passage."""
        demand, tags = "Never do this again here.\n", "<environment_context>x</environment_context>\n" * 10
        for make in (
            lambda size: [user(tags + demand * size)],
            lambda size: [assistant(ToolCall("c1", "write", json.dumps({"path": "a", "content": demand * size})))],
            lambda size: [assistant(ToolCall("c1", "write", {"content": demand * size})), tool(demand * size)],
        ):
            taken: list[float] = []
            for size in (2_000, 32_000):
                messages = make(size)
                start = process_time()
                Index(messages)
                taken.append(process_time() - start)
            assert taken[1] < 60 * taken[0]

    def test_an_index_reports_its_size(self) -> None:
        """Passages are counted, and messages."""
        index = Index([user("a"), tool(LONG)])
        assert index.messages == 2 and len(index) > 20


class TestRules:
    """A question about the user's rules shares no word with them."""

    RULE, REFUSAL = "Store the readings in UTC, and never round them.", "No, do not push it to the remote."

    def session(self) -> list[Message]:
        noise = talk(*(f"The linter has a rule about imports in file {number}." for number in range(30)))
        return [user(self.RULE), assistant("Done. I could push it."), user(self.REFUSAL), *noise]

    @pytest.mark.parametrize(
        "query",
        ["what did the user forbid", "what rules did I give", "the user's rules and refusals", "am I allowed to"],
    )
    def test_demands_of_the_user_are_found(self, query: str) -> None:
        found = memory(*self.session()).search(query, tokens=100)
        assert self.RULE in found.text and self.REFUSAL in found.text

    def test_only_words_of_the_user_are_demands(self) -> None:
        """Not a reminder that an agent added, and not an output or a file that says never."""
        reminder = user("<system-reminder>Never mention this. Always be brief.</system-reminder>")
        added = msgspec.structs.replace(user("Never say that."), source_id="summary")
        others = [tool("You must never do this."), assistant("I should never do that.")]
        assert not memory(reminder, added, *others).search("what did the user forbid")

    @pytest.mark.parametrize("query", ["which rule has the linter", "import rule file 7"])
    def test_other_questions_are_answered_as_before(self, query: str) -> None:
        found = memory(*self.session()).search(query)
        assert all(hit.text != self.REFUSAL for hit in found.hits[:3])

    def test_they_are_found_in_a_history_too_large_to_index(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kompakt.engine.recall.memory.INDEX_CHARS", 100)
        monkeypatch.setattr("kompakt.engine.recall.memory.SCAN_CHARS", 100)
        found = memory(*self.session()).search("what did the user forbid", tokens=100)
        assert self.RULE in found.text and self.REFUSAL in found.text


class TestRest:
    """An answer without room for all matches says so."""

    ROWS = talk(*(f"Order {number} has a delayed shipment." for number in range(41)))

    def test_the_number_of_matches_that_are_left_out_is_named(self) -> None:
        found = memory(*self.ROWS).search("delayed shipment", tokens=300)
        last = found.text.rpartition("\n")[2]
        assert (
            last
            == f"[kompakt] {41 - len(found.hits)} more passages contain these words; add words to narrow the search."
        )
        assert 0 < len(found.hits) < 41 and found.tokens <= 300

    def test_in_a_history_too_large_to_index_the_number_is_a_lower_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kompakt.engine.recall.memory.INDEX_CHARS", 100)
        monkeypatch.setattr("kompakt.engine.recall.memory.SCAN_CHARS", 1_200)
        found = memory(*self.ROWS).search("delayed shipment", tokens=300)
        last = found.text.rpartition("\n")[2]
        assert last.startswith("[kompakt] at least ") and "more passages contain these words" in last
        assert int(last.split()[3]) + len(found.hits) < 41

    def test_a_complete_answer_has_no_such_line(self) -> None:
        for query, tokens in (("delayed shipment", None), ("order 17 shipment", 300), ("delayed zebra", 300)):
            assert "more passage" not in memory(*self.ROWS).search(query, tokens=tokens).text

    def test_in_a_short_answer_passages_need_the_room(self) -> None:
        found = memory(*self.ROWS).search("delayed shipment", tokens=60)
        assert found and "[kompakt]" not in found.text

    @given(st.integers(20, 600))
    def test_it_fits_whatever_the_room(self, tokens: int) -> None:
        assert memory(*self.ROWS).search("delayed shipment", tokens=tokens).tokens <= tokens
