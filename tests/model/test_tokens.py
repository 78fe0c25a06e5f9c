"""Token counts: equal to another implementation's, cached without mistakes, and complete.

The other implementation is ``splintr``, which shares no code with the one in use.
"""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.histories import FORMATS, bodies, plain
from tests.histories.ingredients import TEXTS

import kompakt
from kompakt.model.budget import Usage
from kompakt.model.media import image_size, media_tokens
from kompakt.model.messages import Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from kompakt.model.tokens import FAMILIES, NEUTRAL, Counter, Family, counter_for, family_of, pieces, vocabulary


@cache
def other() -> Any:
    """Load the other implementation once."""
    from splintr import Tokenizer

    return Tokenizer.from_pretrained("o200k_base")


def other_count(text: str) -> int:
    """Count with the other implementation, in which special tokens are plain text too."""
    return len(other().encode(text))


SAMPLES = {
    "code": "def f(xs: list[int]) -> int:\n    return sum(x ** 2 for x in xs if x % 2)\n" * 40,
    "chinese": "我们需要检查数据库连接是否正常,然后重新启动服务。" * 40,
    "japanese": "データベースの接続を確認してから、サービスを再起動してください。" * 40,
    "korean": "데이터베이스 연결을 확인한 다음 서비스를 다시 시작하세요. " * 40,
    "emoji": "👩🏽‍💻🚀🎉👨‍👩‍👧‍👦🏳️‍🌈" * 60,
    "base64": base64.b64encode(random.Random(1).randbytes(6000)).decode(),
    "json": '{"id": 18446744073709551617, "path": "a\\\\b\\"c", "ok": [true, null]}' * 40,
    "whitespace": " \t\r\n" * 200 + " " * 500 + "\n" * 300,
    "accents": "cafe\u0301 naïve Ångström \u202btext\u202c\u2028" * 50,
}


class TestVocabulary:
    """D5, failures.md: a real tokenizer; tested on CJK, code, emoji, base64."""

    @given(st.text(max_size=400))
    def test_any_text_counts_as_elsewhere(self, text: str) -> None:
        """Two independent implementations of o200k agree."""
        assert Counter().text(text) == other_count(text)

    @pytest.mark.parametrize("name", SAMPLES)
    def test_real_kinds_of_text_count_as_elsewhere(self, name: str) -> None:
        """openclaw#103930: chars/4 is three to four times off for these."""
        assert Counter().text(SAMPLES[name]) == other_count(SAMPLES[name])

    def test_chars_by_four_would_be_wrong_for_chinese(self) -> None:
        """The mistake this replaces is visible in the sample."""
        text = SAMPLES["chinese"]
        assert Counter().text(text) > 1.8 * len(text) / 4

    @pytest.mark.parametrize("line", ["x" * 1_000_000, "lorem ipsum dolor " * 55_000, "数" * 300_000])
    def test_a_megabyte_in_one_line_is_counted(self, line: str) -> None:
        """Long lines neither hang nor differ."""
        assert Counter().text(line) == other_count(line)

    def test_a_text_beyond_the_limit_counts_as_a_whole(self) -> None:
        """It is counted in pieces, and none ends inside a word, for any limit."""
        text = "x, " * 1_300_000 + "internationalization  \n" * 10_000
        assert Counter().text(text) == vocabulary("o200k")(text)

    @pytest.mark.parametrize("name", ["o200k", "cl100k"])
    @given(
        parts=st.lists(st.sampled_from([*" \t\n\r./'", "\xa0", "\u3000", "\x1c", "\u0301", "don't", "数", "42"])),
        most=st.integers(1, 12),
    )
    def test_pieces_count_as_the_whole(self, name: Any, parts: list[str], most: int) -> None:
        """Pieces contain the whole text, respect the limit, and add up where a cut was possible."""
        count, text = vocabulary(name), "".join(parts)
        found = list(pieces(text, most))
        assert "".join(found) == text
        assert all(len(piece) <= most for piece in found)
        if all(after[0] == " " and not before[-1].isspace() for before, after in pairwise(found)):
            assert sum(map(count, found)) == count(text)

    @given(
        st.lists(st.sampled_from([*" \t\n\r./'", "\xa0", "\x1c", "don't", "数", "42", "\ud800"])).map("".join),
        st.sampled_from(["", "\n[end 0a1b]", "\n/", " x", "'s"]),
        st.sampled_from([None, lambda text: len(text) // 4]),
    )
    def test_a_longer_text_counts_as_the_whole(self, text: str, end: str, count: Callable[[str], int] | None) -> None:
        """For any text at the boundary and any vocabulary; the cached count is the same."""
        counter, whole = Counter(count=count), Counter(count=count).text(text + end)
        assert (counter.longer(text, end), counter.text(text + end)) == (whole, whole)

    @given(st.text() | st.just("\ud800 a"), st.integers(-2, 40), st.sampled_from([0.3, 1.0, 1.25, 3.7]))
    def test_fits_agrees_with_the_count(self, text: str, most: int, factor: float) -> None:
        """In the tokens of the family, for a text not counted before and for one that was."""
        counter, other = Counter(Family("one", factor=factor)), Counter(Family("one", factor=factor))
        expected = other.scaled(other.text(text)) <= most
        assert [counter.fits(text, most), other.fits(text, most)] == [expected, expected]
        assert counter.text(text) == other.text(text)
        assert counter.tokens(text) == counter.scaled(counter.text(text))

    @pytest.mark.parametrize("text", ["\ud800", "a\udc00b", "ok \ud83d not \ude00 ok", "\ud83d" * 100])
    def test_lone_surrogates_are_counted(self, text: str) -> None:
        """Lone surrogates do not stop a count."""
        assert Counter().text(text) > 0

    def test_special_tokens_in_a_text_are_text(self) -> None:
        """A transcript that quotes a control token is counted as plain text."""
        assert Counter().text("<|endoftext|>") > 1


class TestCache:
    """failures.md: a cached count survives an edit or a tokenizer change."""

    def counted(self) -> tuple[Counter, list[str]]:
        """Return a counter that notes what it had to count."""
        seen: list[str] = []

        def count(text: str) -> int:
            seen.append(text)
            return len(text)

        return Counter(count=count), seen

    def test_equal_texts_are_counted_once(self) -> None:
        """The key is the content, not the object."""
        counter, seen = self.counted()
        assert counter.text("abc" * 50) == counter.text("".join(["abc"] * 50)) == 150
        assert len(seen) == 1

    def test_an_edited_text_is_counted_again(self) -> None:
        """An edit makes another content and so another count."""
        counter, seen = self.counted()
        message = kompakt.Message("user", (Text("short"),))
        before = counter.message(message)
        after = counter.message(message.with_parts([Text("much longer than before")]))
        assert after - before == len("much longer than before") - len("short")
        assert len(seen) == 2

    def test_another_counter_has_its_own_counts(self) -> None:
        """A count made with one vocabulary is never given for another."""
        text = SAMPLES["chinese"]
        old, new = Counter(Family("old", "cl100k")), Counter()
        first = new.text(text)
        assert old.text(text) != first
        assert new.text(text) == first
        assert old.name != new.name

    @given(st.lists(st.sampled_from([*TEXTS, "", "a", "aa"]), min_size=1, max_size=20))
    def test_a_warm_counter_answers_as_a_cold_one(self, texts: list[str]) -> None:
        """Earlier counts make no difference."""
        warm = counter_for(None)
        assert [warm.text(text) for text in texts] == [Counter().text(text) for text in texts]


class TestCalibration:
    """D5: last reported usage anchors the estimate."""

    def test_a_report_moves_the_factor_towards_it(self) -> None:
        """A part of the way with one report, nearly all of it with many."""
        counter = Counter()
        counter.calibrate(Usage(input=1200), 1000)
        assert 1.0 < counter.factor < 1.2
        for _ in range(50):
            counter.calibrate(Usage(input=round(1000 * 1.2 / 1.0)), round(1000 * counter.factor))
        assert counter.factor == pytest.approx(1.2, rel=0.01)
        assert counter.scaled(1000) == pytest.approx(1200, rel=0.01)

    @given(st.lists(st.tuples(st.integers(-10, 10**9), st.integers(-10, 10**9)), max_size=30))
    def test_no_report_carries_it_away(self, reports: list[tuple[int, int]]) -> None:
        """The factor stays within four times that of the family, for any report."""
        counter = Counter(Family("f", factor=1.25))
        for reported, counted in reports:
            counter.calibrate(Usage(input=max(0, reported)), counted)
            assert 1.25 / 4 <= counter.factor <= 1.25 * 4

    def test_cached_tokens_are_part_of_the_prompt(self) -> None:
        """A prompt that was read from the cache still counts as sent."""
        fresh, cached = Counter(), Counter()
        fresh.calibrate(Usage(input=1200), 1000)
        cached.calibrate(Usage(input=200, cache_read=1000), 1000)
        assert fresh.factor == cached.factor

    def test_counts_stay_and_the_name_changes(self) -> None:
        """A stored count can be distinguished from one with another factor."""
        counter = Counter()
        text, name = counter.text("hello world"), counter.name
        counter.calibrate(Usage(input=1500), 1000)
        assert counter.text("hello world") == text
        assert counter.name != name


class TestFamilies:
    @pytest.mark.parametrize(
        ("model", "family"),
        [
            ("gpt-5.4", "openai"),
            ("openai/gpt-4o-mini", "openai"),
            ("gpt-4-0613", "openai-cl100k"),
            ("claude-opus-5-5", "claude"),
            ("us.anthropic.claude-sonnet-4-5-v1:0", "claude"),
            ("gemini-3-pro-preview", "gemini"),
            ("meta.llama3-3-70b-instruct-v1:0", "llama"),
            ("deepseek-v4", "deepseek"),
            ("something-else", "o200k"),
            (None, "o200k"),
        ],
    )
    def test_a_model_finds_its_family(self, model: str | None, family: str) -> None:
        """By its name, with or without a route in front."""
        assert family_of(model).name == family

    def test_factors_are_above_the_vocabulary(self) -> None:
        """No family is assumed to be cheaper than o200k, because a request could then exceed the window."""
        assert all(family.factor >= 1 for _, family in FAMILIES)


def png(width: int, height: int) -> bytes:
    """Write the head of a PNG."""
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII5B", 13, b"IHDR", width, height, 8, 6, 0, 0, 0) + b"\0" * 8


def gif(width: int, height: int) -> bytes:
    """Write the head of a GIF."""
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0" * 20


def jpeg(width: int, height: int) -> bytes:
    """Return the head of a JPEG whose size follows 3,000 bytes of metadata."""
    exif = b"\xff\xe1" + struct.pack(">H", 3002) + b"\0" * 3000
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + b"\0" * 9
    return b"\xff\xd8" + exif + frame + b"\0" * 20


def picture(data: bytes, detail: str | None = None) -> Media:
    """Put a picture into a part."""
    return Media("image", "image/png", base64.b64encode(data).decode(), detail=detail)


class TestMedia:
    """failures.md: an image is 100,000 tokens in one place and 0 in another."""

    @pytest.mark.parametrize("make", [png, gif, jpeg])
    @pytest.mark.parametrize("size", [(1, 1), (640, 480), (4000, 3000)])
    def test_the_size_is_read_from_the_head(self, make: Callable[[int, int], bytes], size: tuple[int, int]) -> None:
        """Width and height come from the file itself."""
        assert image_size(base64.b64encode(make(*size)).decode()) == size

    @pytest.mark.parametrize(
        ("rule", "size", "tokens"),
        [
            ("openai", (1024, 1024), 85 + 4 * 170),
            ("openai", (2048, 4096), 85 + 6 * 170),
            ("openai", (512, 512), 85 + 170),
            ("anthropic", (1092, 1092), 1590),
            ("anthropic", (200, 200), 54),
            ("gemini", (384, 384), 258),
            ("gemini", (1536, 768), 2 * 258),
        ],
    )
    def test_images_cost_the_published_tokens(self, rule: Any, size: tuple[int, int], tokens: int) -> None:
        """The examples of the providers' own pages."""
        assert media_tokens(picture(png(*size)), rule) == tokens

    def test_low_detail_is_flat(self) -> None:
        """OpenAI's low detail costs the same at any size."""
        assert media_tokens(picture(png(4000, 3000), "low"), "openai") == 85

    @pytest.mark.parametrize("rule", ["openai", "anthropic", "gemini"])
    @pytest.mark.parametrize("kind", ["image", "audio", "video", "document", "file"])
    @given(data=st.one_of(st.none(), st.just("@@@"), st.text(max_size=40), st.binary(max_size=60)))
    def test_media_is_never_free_and_never_its_base64(self, rule: Any, kind: Any, data: str | bytes | None) -> None:
        """For any bytes the count is above zero and below that of a long text."""
        text = base64.b64encode(data).decode() if isinstance(data, bytes) else data
        assert 0 < media_tokens(Media(kind, data=text), rule) <= 4000

    def test_a_large_picture_is_not_counted_as_text(self) -> None:
        """A megabyte of picture costs as much as its pixels."""
        part = picture(png(800, 600) + random.Random(2).randbytes(1_000_000))
        assert media_tokens(part, "anthropic") == 640
        assert Counter().part(ToolResult("a", "", media=(part,))) < 1000


class TestWholeRequest:
    """failures.md: tool schemas and instructions not counted: 2,435 estimated, 12,202 billed."""

    @pytest.mark.parametrize("format", FORMATS)
    @given(data=st.data())
    def test_parts_add_up(self, format: str, data: st.DataObject) -> None:
        """By role and by kind, the parts make the total."""
        found = kompakt.count(data.draw(bodies(format)), format=format)
        assert found.total == sum(found.by_role.values()) == sum(found.by_kind.values())
        assert sum(found.by_tool.values()) <= found.total
        assert all(value >= 0 for table in (found.by_role, found.by_kind, found.by_tool) for value in table.values())

    @pytest.mark.parametrize("format", FORMATS)
    def test_system_and_tools_are_in_it(self, format: str) -> None:
        """Leaving out the instructions or the schemas makes the request smaller."""
        body = plain.build(format, messages=20)
        system = {"anthropic": "system", "bedrock": "system", "gemini": "systemInstruction"}.get(format, "instructions")
        tools = "toolConfig" if format == "bedrock" else "tools"
        whole = kompakt.count(body, format=format)
        bare = {key: value for key, value in body.items() if key != tools}
        assert whole.by_kind["tool schema"] == whole.total - kompakt.count(bare, format=format).total > 50
        if format != "openai-chat":
            bare = {key: value for key, value in body.items() if key != system}
            assert whole.total - kompakt.count(bare, format=format).total >= Counter().text(plain.SYSTEM)
        assert whole.by_role["system"] >= Counter().text(plain.SYSTEM)

    def test_each_tool_has_its_share(self) -> None:
        """Calls and results are put down to the tool that was called."""
        body = plain.build("openai-chat", messages=60)
        assert set(kompakt.count(body).by_tool) == {c.name for m in kompakt.parse(body) for c in m.calls}

    def test_the_model_decides_the_counter(self) -> None:
        """The given model, else the payload's own, else o200k without a factor."""
        body = plain.build("anthropic", messages=20)
        own = kompakt.count(body)
        assert own.total == kompakt.count(body, model="claude-sonnet-5").total
        assert own.total > kompakt.count(body, model="gpt-5.4").total
        assert kompakt.count(body["messages"], format="anthropic").counter == Counter(NEUTRAL).name

    def test_json_is_counted_as_it_is_sent(self) -> None:
        """agent-framework#7022: escapes that Python adds when printing are not in the request."""
        value, sent = ToolCall("a", "f", {"path": "データ.txt"}), ToolCall("a", "f", '{"path":"データ.txt"}')
        assert Counter().part(value) == Counter().part(sent)

    def test_redacted_thinking_is_not_free(self) -> None:
        """Unreadable thinking is still billed."""
        assert Counter().part(Reasoning("", "A" * 400, redacted=True)) > 0
        assert Counter().part(Opaque("hologram", {"type": "hologram", "data": "x y z"})) > 0
