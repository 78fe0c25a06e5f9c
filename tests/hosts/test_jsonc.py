"""Edits of settings files: only what is asked for changes, also between comments, and the edit can be taken back."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kompakt.errors import UsageError
from kompakt.hosts import jsonc

COMMENTED = """{
    // which model
    "model": "opus", // the large one
    "hooks": {
        /* format after edits */
        "PostToolUse": [
            {"matcher": "Edit", "command": "fmt"}, // trailing comma and comment
        ],
    },
}
"""

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)
LAYOUTS = st.sampled_from([None, 2, 4, "\t"])


def plain(text: str) -> Any:
    """Decode a text without string values that look like comments."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    return json.loads(re.sub(r",(\s*[}\]])", r"\1", text))


class TestPut:
    def test_comments_and_order_stay(self) -> None:
        """Every line of the file is still there, in order, and one member is new."""
        changed = jsonc.put(COMMENTED, ("statusLine",), {"type": "command"}, "f")
        assert plain(changed) == {**plain(COMMENTED), "statusLine": {"type": "command"}}
        lines = iter(changed.split("\n"))
        assert all(line in lines for line in COMMENTED.split("\n"))

    def test_an_item_follows_the_others(self) -> None:
        """After a trailing comma no second comma is written."""
        changed = jsonc.append(COMMENTED, ("hooks", "PostToolUse"), {"matcher": "Bash"}, "f")
        assert [item["matcher"] for item in plain(changed)["hooks"]["PostToolUse"]] == ["Edit", "Bash"]

    def test_missing_objects_are_created(self) -> None:
        assert plain(jsonc.append("", ("a", "b"), 1, "f")) == {"a": {"b": [1]}}

    def test_a_file_with_only_a_comment_gets_a_member_after_it(self) -> None:
        """The comment has no line end."""
        assert jsonc.read(jsonc.put("// mine", ("a",), 1, "f"), "f").value == {"a": 1}

    @given(OBJECTS, LAYOUTS, VALUES)
    def test_any_object_gets_a_member(self, value: dict[str, Any], indent: Any, new: Any) -> None:
        """The result is JSON with the old members and the new one, in any layout."""
        text = json.dumps(value, indent=indent)
        assert json.loads(jsonc.put(text, ("kompakt", "x"), new, "f")) == {**value, "kompakt": {"x": new}}


class TestDrop:
    @given(OBJECTS, LAYOUTS, VALUES)
    def test_an_added_member_is_taken_out_without_a_trace(self, value: dict[str, Any], indent: Any, new: Any) -> None:
        """What is left has the old members only."""
        text = json.dumps(value, indent=indent)
        changed = jsonc.put(text, ("kompakt", "x"), new, "f")
        assert json.loads(jsonc.drop(changed, ("kompakt",), "f")) == value

    def test_comments_around_a_dropped_item_stay(self) -> None:
        """Also after the comma of the item before it."""
        added = jsonc.append(COMMENTED, ("hooks", "PostToolUse"), {"matcher": "Bash"}, "f")
        left = jsonc.drop_items(added, ("hooks", "PostToolUse"), lambda item: item["matcher"] == "Bash", "f")
        assert plain(left) == plain(COMMENTED)
        assert left.count("//") == COMMENTED.count("//")

    @pytest.mark.parametrize("comment", [" // x, y\n", " /* x, y */ "])
    @pytest.mark.parametrize("trailing", ["", ","])
    @pytest.mark.parametrize("keys", [["a"], ["a", "b"], ["a", "b", "c"]])
    def test_a_comma_in_a_comment_is_no_separator(self, keys: list[str], trailing: str, comment: str) -> None:
        """Before or after the separator: every member and every item can go, and all comments stay."""
        after = "".join(f'{comment}"{key}": 1{comment},' for key in keys[:-1])
        text = f'{{{after}{comment}"{keys[-1]}": 1{comment}{trailing}{comment}}}'
        items = f'{{"list": [{text[1:-1].replace(": 1", "")}]}}'
        for key in keys:
            others = [other for other in keys if other != key]
            left = jsonc.drop(text, (key,), "f")
            assert jsonc.read(left, "f").value == dict.fromkeys(others, 1)
            assert left.count("x, y") == text.count("x, y")
            left = jsonc.drop_items(items, ("list",), lambda item, key=key: item == key, "f")
            assert jsonc.read(left, "f").value == {"list": others}

    def test_an_edit_that_is_not_valid_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is not returned, so that no caller can write it."""
        monkeypatch.setattr(jsonc, "_deleted", lambda text, node, index: text[:-1])
        monkeypatch.setattr(jsonc, "_inserted", lambda text, node, value, key=None: text[:-1])
        text = '{"a": 1, "b": [1, 2]}'
        for edit in (
            lambda: jsonc.put(text, ("c",), 1, "f"),
            lambda: jsonc.append(text, ("b",), 1, "f"),
            lambda: jsonc.drop(text, ("a",), "f"),
            lambda: jsonc.drop_items(text, ("b",), lambda item: item == 1, "f"),
        ):
            with pytest.raises(UsageError, match="correct the file"):
                edit()

    def test_every_element_of_a_commented_file_can_go(self) -> None:
        """The file is still valid after each."""
        for path in (("model",), ("hooks",), ("hooks", "PostToolUse")):
            left = jsonc.drop(COMMENTED, path, "f")
            assert jsonc.read(left, "f").find(path) is None


class TestFaults:
    def test_a_file_that_is_nested_too_deeply_is_an_error(self) -> None:
        with pytest.raises(UsageError, match="f: nested too deeply"):
            jsonc.read('{"a": ' + "[" * 20_000 + "]" * 20_000 + "}", "f")

    @pytest.mark.parametrize("text", ['{"a": }', '{"a" 1}', "{,}", '{"a": 1} x', '{"a": 1', "[1, 2]", '{"a": 01x}'])
    def test_a_broken_file_is_named_and_not_changed(self, text: str) -> None:
        """The error names the file; the caller still has its text."""
        with pytest.raises(UsageError, match=r"settings\.json"):
            jsonc.put(text, ("a",), 1, "settings.json")
