"""Messages as values: short builders for hand-written cases, and a strategy of malformed sequences.

The one invariant of the strategy is that it has none: orphans, repeats, missing ids and roles in any order.
"""

from __future__ import annotations

from hypothesis import strategies as st

from kompakt.model.messages import Marker, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult


def system(text: str = "Be brief.") -> Message:
    """Make a system message."""
    return Message("system", (Text(text),))


def user(text: str = "go", *parts: Part) -> Message:
    """Make a user message."""
    return Message("user", (Text(text), *parts))


def assistant(*parts: Part | str, id: str | None = None, is_summary: bool = False) -> Message:
    """Build an assistant message; a string is its text."""
    made = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    return Message("assistant", made, id, is_summary=is_summary)


def tool(*results: ToolResult) -> Message:
    """Make a message that carries results."""
    return Message("tool", results)


def call(id: str, name: str = "read", *, follows: str | None = None, hosted: bool = False) -> ToolCall:
    """Make a tool call."""
    return ToolCall(id, name, {}, hosted, follows)


def result(id: str, output: str = "done", *, hosted: bool = False) -> ToolResult:
    """Make a tool result."""
    return ToolResult(id, output, hosted=hosted)


_ids = st.sampled_from(("a", "b", "c", "a", ""))
_parts = st.one_of(
    st.builds(Text, st.sampled_from(("", "hi"))),
    st.builds(Reasoning, st.sampled_from(("", "hm"))),
    st.builds(ToolCall, _ids, st.just("read"), st.none(), st.booleans(), st.one_of(st.none(), _ids)),
    st.builds(ToolResult, _ids, st.just("done"), hosted=st.booleans()),
    st.just(Marker()),
    st.just(Opaque("hologram", {"type": "hologram"})),
)

malformed = st.lists(
    st.builds(
        Message,
        st.sampled_from(("system", "user", "user", "assistant", "assistant", "assistant", "tool", "tool")),
        st.lists(_parts, max_size=3).map(tuple),
        st.one_of(st.none(), st.none(), st.sampled_from(("x", "y"))),
        is_summary=st.sampled_from((False, False, False, True)),
    ),
    max_size=14,
)
"""Any messages in any order."""
