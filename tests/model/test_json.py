"""Which values are JSON, and what becomes of those that are not."""

from __future__ import annotations

import enum
import subprocess
import sys
from types import MappingProxyType
from typing import Any

import pytest

from kompakt.errors import InputError, MalformedPayload
from kompakt.model.json import MAX_DEPTH, MAX_DIGITS, MAX_INNER_DEPTH, decode_text, plain, restore


def nested(levels: int, value: Any = "x") -> Any:
    """Nest a value in this many lists."""
    for _ in range(levels):
        value = [value]
    return value


class Dumped:
    """An object as an SDK returns it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def model_dump(self, **options: Any) -> Any:
        return self.value


class Bare:
    """An object whose ``model_dump`` accepts no options."""

    def model_dump(self) -> Any:
        return {"role": "user", "content": "hi"}


class Voice(enum.StrEnum):
    USER = "user"


class TestPlain:
    def test_json_is_returned_as_it_is(self) -> None:
        """Nothing is copied."""
        value = {"a": [1, 2.5, None, True, "x", {"b": b"bytes"}]}
        assert plain(value).value is value
        assert plain(value).origins == {}

    def test_only_foreign_values_are_copied(self) -> None:
        """A part that is JSON stays the same object inside one that had to be converted."""
        same = {"role": "user", "content": "hi"}
        value = plain([same, ({"role": "user"},)]).value
        assert value == [same, [{"role": "user"}]]
        assert value[0] is same

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (("a", ["b", ("c",)]), ["a", ["b", ["c"]]]),
            ({"a": Dumped({"b": (1, 2)})}, {"a": {"b": [1, 2]}}),
            ([Bare()], [{"role": "user", "content": "hi"}]),
            ({1: "a", Voice.USER: "b"}, {"1": "a", "user": "b"}),
            ([Voice.USER], ["user"]),
            (MappingProxyType({"a": 1}), {"a": 1}),
        ],
    )
    def test_values_with_a_json_equivalent_are_converted(self, given: Any, expected: Any) -> None:
        """Tuples, mappings, enumerations, objects of an SDK, at any depth."""
        value = plain(given).value
        assert value == expected
        assert type(value) is type(expected)

    @pytest.mark.parametrize("given", [{"a": object()}, [{1, 2}], {"a": {(1, 2): 3}}, [Dumped(object())], {"a": 1j}])
    def test_other_values_are_rejected_with_their_path(self, given: Any) -> None:
        """No object reaches code that expects JSON."""
        with pytest.raises(MalformedPayload, match="payload"):
            plain(given)

    def test_an_object_that_cannot_be_dumped_is_rejected(self) -> None:
        """The error of the object is named."""

        class Broken:
            def model_dump(self, **options: Any) -> Any:
                raise ValueError("no")

        with pytest.raises(InputError, match="model_dump failed: no"):
            plain([Broken()])

    @pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 950, 10_000, 100_000])
    def test_deep_values_are_rejected(self, levels: int) -> None:
        """Whether all of it is JSON or not."""
        for value in (nested(levels), nested(levels, ()), (nested(levels),)):
            with pytest.raises(InputError, match="nested"):
                plain(value)

    def test_cyclic_values_are_rejected(self) -> None:
        """It has no end."""
        value: list[Any] = []
        value.append(value)
        with pytest.raises(InputError, match="nested"):
            plain(value)

    def test_the_deepest_value_that_is_taken(self) -> None:
        """The same limit for JSON and for what has to be converted."""
        assert plain(nested(MAX_DEPTH)).value == nested(MAX_DEPTH)
        assert plain((nested(MAX_DEPTH - 1),)).value == nested(MAX_DEPTH)

    @pytest.mark.parametrize("sign", [1, -1])
    def test_long_integers_are_rejected(self, sign: int) -> None:
        """Python could not write them."""
        assert plain({"n": sign * (10**MAX_DIGITS - 1)})
        for digits in (MAX_DIGITS, 10_000):
            with pytest.raises(InputError, match="an integer with more"):
                plain({"n": sign * 10**digits})


class TestRestore:
    def test_untouched_parts_are_the_callers_objects(self) -> None:
        """At any depth. New values stay as they are."""
        one, other = Dumped({"a": 1}), ({"b": 2},)
        value, origins = plain([one, other, {"c": 3}])
        back = restore([value[2], value[0], {"new": value[1]}], origins)
        assert back == [{"c": 3}, one, {"new": other}]
        assert back[1] is one
        assert back[2]["new"] is other


class TestDecodeText:
    def test_depth_is_limited(self) -> None:
        """The value may be put in the place of the text, which is some levels deep itself."""
        assert decode_text("[" * MAX_INNER_DEPTH + "]" * MAX_INNER_DEPTH)
        for levels in (MAX_INNER_DEPTH + 1, 950, 10_000):
            with pytest.raises(ValueError):
                decode_text("[" * levels + "]" * levels)

    @pytest.mark.parametrize("text", ["", "{", "9" * 5_000, '"\ud800"', "NaN"])
    def test_what_is_not_json_is_a_value_error(self, text: str) -> None:
        """One type of error for any fault."""
        with pytest.raises(ValueError):
            decode_text(text)


THREADS_DECODE = """
import sys, threading
import msgspec
from kompakt.model.json import prepare

sys.setswitchinterval(1e-6)
value = {f"g{i}": {f"f{j}": j for j in range(30)} for i in range(20)}
for n in range(100):
    inner = [msgspec.defstruct(f"I{i}", [(f"f{j}", int | None, None) for j in range(30)]) for i in range(20)]
    kind = msgspec.defstruct("T", [(f"g{i}", one | None, None) for i, one in enumerate(inner)])
    prepare(kind)
    start = threading.Barrier(4)
    threads = [threading.Thread(target=lambda: (start.wait(), msgspec.convert(value, kind))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_decode_the_first_values_of_a_prepared_type_at_once() -> None:
    """Without preparation msgspec ends the process with a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", THREADS_DECODE], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
