"""Hash chains: cached or not, a request reads the same, and its bytes are preserved."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kompakt.errors import InputError
from kompakt.gateway.request import history
from kompakt.gateway.request.history import HashChains, InvalidJson, read, root_of
from kompakt.model.json import MAX_DEPTH

ROOT = root_of("somebody", "openai-chat", "1")

texts = st.text(max_size=12) | st.sampled_from(['"messages":[', "],[", "}{", '\\"', "é\u2028", "😀"])
users = st.builds(lambda text: {"role": "user", "content": text}, texts)
answers = st.builds(lambda text: {"role": "assistant", "content": text}, texts)
blocks = st.builds(lambda text: {"role": "user", "content": [{"type": "text", "text": text}]}, texts)
systems = st.builds(lambda text: {"role": "system", "content": text}, texts)
messages = st.lists(users | answers | blocks, min_size=1, max_size=12)
fields = st.dictionaries(
    st.sampled_from(["model", "tools", "stream", "metadata", "stop", "a\u00e9"]),
    st.none() | st.integers() | texts | st.lists(texts, max_size=2) | st.just([{"role": "user", "content": "x"}]),
    max_size=3,
)
layouts = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n\t", " : ")])


def written(before: dict[str, Any], items: list[Any], after: dict[str, Any], layout: tuple[str, str]) -> bytes:
    body = {**before, "messages": items, **{name: value for name, value in after.items() if name not in before}}
    try:
        return json.dumps(body, separators=layout, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a character can only be written as an escape
        return json.dumps(body, separators=layout).encode()


def plain(chains: HashChains, body: bytes) -> object:
    """Read a request as values that can be compared."""
    chain = chains.read(body, "openai-chat", ROOT)
    return None if chain is None else msgspec.to_builtins(msgspec.structs.replace(chain, request=chain.request))


class TestReading:
    @given(
        st.lists(systems, max_size=2), st.lists(messages, min_size=1, max_size=5), fields, fields, layouts, st.data()
    )
    def test_a_cached_prefix_does_not_change_the_result(
        self,
        lead: list[Any],
        steps: list[list[Any]],
        before: dict[str, Any],
        after: dict[str, Any],
        layout: tuple[str, str],
        data: st.DataObject,
    ) -> None:
        """Requests that grow, shrink or change anywhere read as without a cache."""
        knowing = HashChains(short=0)
        history = list(lead)
        for step in steps:
            history = history[: data.draw(st.integers(len(lead), len(history)))] + step
            body = written(before, history, after, layout)
            assert plain(knowing, body) == plain(HashChains(), body)

    @given(messages, fields, fields, layouts)
    def test_items_and_fields_keep_their_positions(
        self, items: list[Any], before: dict[str, Any], after: dict[str, Any], layout: tuple[str, str]
    ) -> None:
        body = written(before, items, after, layout)
        asked = read(body, "openai-chat")
        if asked is None:  # the same list is also in another field, so it is ambiguous
            assert items == [{"role": "user", "content": "x"}]
            return
        assert [json.loads(raw) for raw in asked.items()] == items
        assert json.loads(asked.with_items(asked.items())) == json.loads(body)
        assert list(json.loads(asked.with_items([b"1"]))) == list(json.loads(body))

    @pytest.mark.parametrize("body", [b"", b"[]", b"nul", b'{"messages":', b"\xff\xfe", b'{"a":1}x', b"[" * 100_000])
    def test_a_body_that_is_not_a_json_object_is_rejected(self, body: bytes) -> None:
        with pytest.raises(InvalidJson):
            read(body, "openai-chat")

    @pytest.mark.parametrize("number", [b"9" * 4_301, b"-" + b"9" * 9_000], ids=["4301 digits", "negative"])
    @pytest.mark.parametrize("offset", [0, 1, 2_149, 2_150, 4_300])
    def test_an_integer_that_is_too_long_is_found_at_any_offset(self, number: bytes, offset: int) -> None:
        body = b'{"messages":[{"role":"user","content":"x"}],"a":["' + b"x" * offset + b'",' + number + b"]}"
        with pytest.raises(InvalidJson, match="4,300 digits"):
            read(body, "openai-chat")

    @pytest.mark.parametrize("place", ["field", "item"])
    def test_nesting_is_counted_from_the_top_of_the_body(self, place: str) -> None:
        def body(levels: int) -> bytes:
            deep = b"[" * levels + b"]" * levels
            item, field = (deep, b"1") if place == "item" else (b"1", deep)
            return b'{"messages":[{"role":"user","content":"x","a":' + item + b'}],"b":' + field + b"}"

        above = 3 if place == "item" else 1
        assert read(body(MAX_DEPTH - above), "openai-chat") is not None
        with pytest.raises(InvalidJson, match="levels deep"):
            read(body(MAX_DEPTH - above + 1), "openai-chat")

    def test_text_with_many_brackets_and_digits_is_read(self) -> None:
        body = json.dumps({"messages": [{"role": "user", "content": "[" * 5_000 + "9" * 9_000}]}).encode()
        assert read(body, "openai-chat") is not None

    @pytest.mark.parametrize("body", [b"{}", b'{"messages":[]}', b'{"messages":"x"}', b'{"messages":{"a":[1]}}'])
    def test_a_body_without_a_list_of_messages_has_no_chain(self, body: bytes) -> None:
        assert read(body, "openai-chat") is None

    def test_an_item_that_is_not_a_message_is_rejected(self) -> None:
        with pytest.raises(InputError):
            HashChains().read(b'{"messages":[1]}', "openai-chat", ROOT)

    def test_a_repeated_messages_field_is_not_ambiguous(self) -> None:
        """The last of two equal fields counts, as providers read it, with and without the cache."""
        one = b'{"messages":[{"role":"user","content":"a"}]}'
        two = b'{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}'
        knowing = HashChains(short=0)
        knowing.read(one, "openai-chat", ROOT)
        assert plain(knowing, two) == plain(HashChains(), two)


class TestKeys:
    def keys(self, items: list[Any], format: str = "anthropic", root: bytes = ROOT) -> list[bytes]:
        key = "contents" if format == "gemini" else "messages"
        chain = HashChains().read(json.dumps({key: items}).encode(), format, root)
        assert chain is not None
        return chain.keys

    def test_cache_marks_shapes_and_field_order_do_not_change_the_key(self) -> None:
        plain = self.keys([{"role": "user", "content": "hello"}])
        mark = {"text": "hello", "cache_control": {"type": "ephemeral"}, "type": "text"}
        assert self.keys([{"content": [mark], "role": "user"}]) == plain

    def test_changed_reminders_do_not_change_the_key(self) -> None:
        def said(*texts: str) -> list[bytes]:
            return self.keys([{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}])

        assert said("do it", "<system-reminder>Monday</system-reminder>") == said("do it")
        assert said("<system-reminder>a</system-reminder>\n", "do it") == said("do it")
        assert said("do it") != said("do it", "<system-reminder>a</system-reminder> and more")

    def test_leading_system_messages_are_not_part_of_the_chain(self) -> None:
        tail = {"role": "user", "content": "go"}
        one = self.keys([{"role": "system", "content": "Monday"}, tail], "openai-chat")
        other = self.keys([{"role": "developer", "content": "Tuesday"}, tail], "openai-chat")
        assert one[-1] == other[-1]

    def test_changed_content_changes_the_key(self) -> None:
        user, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}
        said = [[user], [answer], [user, answer], [user, user], [user, answer, user]]
        assert len({self.keys(items)[-1] for items in said}) == len(said)

    def test_tenants_formats_and_policies_share_no_keys(self) -> None:
        roots = {root_of(*parts) for parts in [("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("b", "b", "c")]}
        assert len(roots) == 4

    def test_a_message_of_reminders_only_is_still_a_message(self) -> None:
        """Items are counted, so adding or removing one changes the prefix."""
        asked, answer = {"role": "user", "content": "go"}, {"role": "assistant", "content": "done"}
        reminder = {"role": "user", "content": "<system-reminder>Monday</system-reminder>"}
        other = {"role": "user", "content": "<system-reminder>Tuesday</system-reminder>"}
        assert self.keys([asked, reminder, answer]) == self.keys([asked, other, answer])
        assert self.keys([asked, reminder, answer])[-1] != self.keys([asked, answer])[-1]


def test_idle_requests_leave_the_cache_and_are_read_again() -> None:
    """Memory follows the active conversations; a client that returns gets the same result."""
    bodies = [written({}, [{"role": "user", "content": f"{number} {'x' * 40}"}], {}, (",", ":")) for number in range(9)]
    warm, idle = HashChains(short=0), HashChains(short=0, idle=0)
    for body in [*bodies, *bodies]:
        assert plain(warm, body) == plain(idle, body)
    assert (warm.cached, idle.cached) == (9, 1)


def test_a_request_is_compared_with_its_own_conversation_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a request does not grow with the number of conversations, and old ones leave the index."""
    compared = list[bytes]()
    shared = history._shared

    def counted(body: bytes, chain: history.HashChain) -> int:
        compared.append(body)
        return shared(body, chain)

    monkeypatch.setattr(history, "_shared", counted)
    monkeypatch.setattr(history, "MAX_RECENT", 20)
    warm = HashChains(short=0)
    for length in (1, 2, 3):
        for number in range(20):
            said = [{"role": "user", "content": f"{number} {'x' * 40} {step}"} for step in range(length)]
            body = written({}, said, {}, (",", ":"))
            assert plain(warm, body) == plain(HashChains(), body)
    assert len(compared) == 40
    for number in range(100, 120):
        plain(warm, written({}, [{"role": "user", "content": f"{number} {'x' * 40}"}], {}, (",", ":")))
    starts = warm._recent._starts[ROOT].values()
    assert warm.cached == 20 and sum(len(keys) for samples in starts for keys in samples.values()) == 20
