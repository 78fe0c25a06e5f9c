"""Bedrock Converse: parse and render keep every byte, and what repair leaves is what the contract allows."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.histories import bodies
from tests.histories.broken import broken
from tests.histories.broken_bedrock import BEDROCK
from tests.judges import judge

from kompakt.errors import MalformedPayload
from kompakt.model.messages import Media, Message, Opaque, Reasoning, Text, ToolCall, ToolResult
from kompakt.model.phrases import BRIDGE, CONTINUE_LINE, INTERRUPTED, NO_OUTPUT, RESUME_LINE
from kompakt.wire.bedrock.messages import parse, render
from kompakt.wire.bedrock.rules import problems, repair, repair_body
from kompakt.wire.wire import Change

Body = dict[str, Any]

CLAUDE = "anthropic.claude-opus-5-5-v1:0"
LLAMA = "meta.llama3-3-70b-instruct-v1:0"
CACHE: Body = {"cachePoint": {"type": "default"}}


def said(role: str, *blocks: Body) -> Body:
    return {"role": role, "content": list(blocks)}


def using(*ids: str, **fields: Any) -> Body:
    return said("assistant", *({"toolUse": {"toolUseId": id_, "name": "read", "input": {}, **fields}} for id_ in ids))


def answering(*ids: str, **fields: Any) -> Body:
    return said("user", *({"toolResult": {"toolUseId": id_, "content": [{"text": "done"}], **fields}} for id_ in ids))


GO = said("user", {"text": "go"})
HI = said("assistant", {"text": "hi"})


def request(*messages: Body, **fields: Any) -> Body:
    tools = {"tools": [{"toolSpec": {"name": "read", "inputSchema": {"json": {}}}}]}
    return {"modelId": CLAUDE, "messages": list(messages), "toolConfig": tools, **fields}


def run_repair(body: Body, *, strict: bool = False) -> tuple[Body, list[Change]]:
    """Repair a request, envelope included, and write it again."""
    history = parse(body["messages"], body)
    messages, changes = repair(history, strict=strict)
    envelope, more = repair_body(history, messages)
    assert envelope is not None
    return {**envelope, "messages": [wire for message in messages for wire in render(message)]}, changes + more


def codes(body: Body, *, strict: bool = False) -> set[str]:
    return {problem.code for problem in problems(body["messages"], body, strict=strict)}


def faults(body: Body, *, strict: bool = True) -> list[str]:
    """Return the faults that the judge finds; a prefill and mixed content count only with strict."""
    lenient = () if strict else ("BR-4 messages: the conversation must start and end", "BR-5")
    return [fault for fault in judge("bedrock", body) if not fault.startswith(lenient)]


class TestParse:
    def test_kinds_of_blocks(self) -> None:
        """Each block gets its type and keeps its wire form; bytes as boto3 gives them are read too."""
        blocks: list[Body] = [
            {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln"}}},
            {"reasoningContent": {"redactedContent": b"\0"}},
            {"image": {"format": "png", "source": {"bytes": b"\0"}}},
            {"document": {"format": "pdf", "name": "paper", "source": {"s3Location": {"uri": "s3://a"}}}},
            {"guardContent": {"text": {"text": "x"}}},
            CACHE,
        ]
        parts = parse([said("user", *blocks)], None)[0].parts
        assert parts == (
            Reasoning("hm", "c2ln", raw=blocks[0]),
            Reasoning("", redacted=True, raw=blocks[1]),
            Media("image", "image/png", "AA==", raw=blocks[2]),
            Media("document", "application/pdf", url="s3://a", name="paper", raw=blocks[3]),
            Opaque("guardContent", blocks[4]),
            Opaque("cachePoint", CACHE),
        )

    def test_results(self) -> None:
        """Texts and values are the output, media are separate, the status is kept."""
        content: list[Body] = [{"text": "a"}, {"json": {"n": 2**70}}, {"image": {"format": "png", "source": {}}}]
        result = parse([answering("t", content=content, status="error")], None)[0].results[0]
        assert (result.call_id, result.output, result.is_error) == ("t", f'a\n{{"n": {2**70}}}', True)
        assert [item.media for item in result.media] == ["image"]

    def test_hosted_tools(self) -> None:
        """A server's tool use is answered in its own message and expects nothing from the client."""
        served = said(
            "assistant",
            {"toolUse": {"toolUseId": "s", "name": "nova_grounding", "input": {}, "type": "server_tool_use"}},
            {"toolResult": {"toolUseId": "s", "content": [{"text": "x"}], "type": "nova_grounding_result"}},
        )
        call, result = parse([served], None)[0].parts
        assert isinstance(call, ToolCall) and isinstance(result, ToolResult)
        assert call.hosted and result.hosted
        assert codes(request(GO, served, GO)) == set()

    def test_envelope(self) -> None:
        """Model, system blocks and tools come from the body."""
        system: list[Body] = [{"text": "be brief"}, CACHE]
        history = parse([GO], request(GO, system=system))
        assert (history.model, len(history.tools), history.system[0].text) == (CLAUDE, 1, "be brief")
        assert [wire for message in history.system for wire in render(message)] == system
        assert parse([GO], {"model": "m", "messages": [GO]}).model == "m"

    @pytest.mark.parametrize(
        ("item", "path"),
        [
            ("hi", "messages[1]"),
            ({"content": []}, "messages[1].role"),
            ({"role": "user", "content": "hi"}, "messages[1].content"),
            ({"role": "user", "content": ["hi"]}, "messages[1].content[0]"),
            (said("user", {"text": 3}), "messages[1].content[0].text"),
            (said("assistant", {"toolUse": "x"}), "messages[1].content[0].toolUse"),
            (said("user", {"toolResult": {"content": "x"}}), "messages[1].content[0].toolResult.content"),
        ],
    )
    def test_wrong_types_name_their_path(self, item: Any, path: str) -> None:
        """The error has the path of the wrong value."""
        with pytest.raises(MalformedPayload) as caught:
            parse([GO, item], None)
        assert caught.value.path == path


class TestRender:
    @given(bodies("bedrock"))
    def test_untouched_messages_are_the_same_objects(self, body: Body) -> None:
        """Parse and render return the caller's own objects."""
        rendered = [wire for message in parse(body["messages"], body) for wire in render(message)]
        assert all(one is other for one, other in zip(rendered, body["messages"], strict=True))

    @given(bodies("bedrock"))
    def test_rebuilt_messages_are_equal(self, body: Body) -> None:
        """A message marked as edited but unchanged is equal to the original."""
        for message in parse(body["messages"], body):
            assert render(message.with_parts(message.parts)) == [message.raw]

    def test_a_renamed_result_keeps_its_values(self) -> None:
        """A new id does not change JSON content and media."""
        message = parse([answering("t", content=[{"json": {"a": 1}}])], None)[0]
        renamed = msgspec.structs.replace(message.results[0], call_id="u", edited=True)
        assert render(message.with_parts([renamed])) == [answering("u", content=[{"json": {"a": 1}}])]

    def test_an_edit_is_laid_over_the_block(self) -> None:
        """The new output replaces the old content; other fields stay."""
        message = parse([answering("t", status="error")], None)[0]
        edited = msgspec.structs.replace(message.results[0], output="short", edited=True)
        assert render(message.with_parts([edited])) == [answering("t", content=[{"text": "short"}], status="error")]

    def test_neutral_messages(self) -> None:
        """A message of another provider is built from its parts; foreign reasoning is left out."""
        call = Message("assistant", (Reasoning("hm"), Text("so"), ToolCall("c1", "f", '{"a": 1}')))
        use = {"toolUse": {"toolUseId": "c1", "name": "f", "input": {"a": 1}}}
        assert render(call) == [said("assistant", {"text": "so"}, use)]
        result = Message("tool", (ToolResult("c1", "no", is_error=True),))
        assert render(result) == [answering("c1", content=[{"text": "no"}], status="error")]
        assert render(Message("tool", (ToolResult("c1", "", is_error=True),))) == [
            answering("c1", content=[{"text": NO_OUTPUT}], status="error")
        ]
        assert render(Message("system", (Text("be brief"),))) == [{"text": "be brief"}]
        assert render(Message("assistant", (Reasoning("hm"),))) == []
        image = {"image": {"format": "png", "source": {"bytes": "AA=="}}}
        assert render(Message("user", (Media("image", "image/png", "AA=="),))) == [said("user", image)]


class TestRules:
    @given(bodies("bedrock"))
    def test_valid_bodies_are_left_alone(self, body: Body) -> None:
        """No problem is seen and no object replaced."""
        repaired, changes = run_repair(body)
        assert problems(body["messages"], body) == [] == changes
        assert all(one is other for one, other in zip(repaired["messages"], body["messages"], strict=True))

    @pytest.mark.parametrize(
        ("code", "name", "body"),
        [pytest.param(code, name, body, id=f"{code} {name}") for code in BEDROCK for name, body in BEDROCK[code]],
    )
    def test_each_code_is_reported_and_repaired(self, code: str, name: str, body: Body) -> None:
        """The broken examples report their code, and repair leaves nothing repairable."""
        given = deepcopy(body)
        strict = code == "BR-5" or name == "assistant last"
        found = problems(body["messages"], body, strict=strict)
        assert code in {problem.code for problem in found}
        repaired, changes = run_repair(body, strict=strict)
        assert body == given
        if all(problem.repairable for problem in found):
            assert changes
            assert codes(repaired, strict=strict) == set()
            assert faults(repaired) == []

    def test_an_open_use_is_closed_as_interrupted(self) -> None:
        """The result joins the next user message, before its text."""
        repaired, _ = run_repair(request(GO, using("a"), GO))
        closed = answering("a", content=[{"text": INTERRUPTED}], status="error")["content"]
        assert repaired["messages"][2] == said("user", *closed, {"text": "go"})

    def test_text_stays_apart_from_results_where_models_require_it(self) -> None:
        """For such a model an assistant message separates the two; repair does not mix them itself."""
        repaired, _ = run_repair(request(GO, using("a"), GO, modelId=LLAMA))
        assert [message["role"] for message in repaired["messages"]] == [
            "user",
            "assistant",
            "user",
            "assistant",
            "user",
        ]
        assert repaired["messages"][3] == said("assistant", {"text": BRIDGE})

    def test_mixing_is_reported_under_strict_only(self) -> None:
        """Which models reject it is not documented."""
        mixed = said("user", *answering("a")["content"], CACHE, {"text": "so"})
        body = request(GO, using("a"), mixed)
        assert (codes(body), codes(body, strict=True)) == (set(), {"BR-5"})
        repaired, _ = run_repair(body, strict=True)
        assert repaired["messages"][2:] == [
            said("user", *answering("a")["content"], CACHE),
            said("assistant", {"text": BRIDGE}),
            said("user", {"text": "so"}),
        ]

    def test_a_prefill_may_stay(self) -> None:
        """Older models continue an assistant message; strict requires a user message at the end."""
        body = request(GO, HI)
        assert run_repair(body) == (body, [])
        assert codes(body, strict=True) == {"BR-4"}
        assert run_repair(body, strict=True)[0]["messages"] == [GO, HI, said("user", {"text": CONTINUE_LINE})]

    def test_repair_makes_no_prefill(self) -> None:
        """When the last user message is dropped, another user message ends the history."""
        assert run_repair(request(GO, HI, answering("lost")))[0]["messages"][-1] == said(
            "user", {"text": CONTINUE_LINE}
        )

    def test_frame(self) -> None:
        """An assistant in front gets a fixed line before it."""
        assert run_repair(request(HI, GO))[0]["messages"] == [said("user", {"text": RESUME_LINE}), HI, GO]

    def test_tool_definitions_by_name(self) -> None:
        """Without toolConfig the tools of the history are declared; the rest of the body stays."""
        body = request(GO, using("a"), answering("a"), toolConfig={"toolChoice": {"auto": {}}})
        assert codes(body) == {"BR-3"}
        repaired, changes = run_repair(body)
        assert [change.code for change in changes] == ["BR-3"]
        spec = {"toolSpec": {"name": "read", "inputSchema": {"json": {"type": "object"}}}}
        assert repaired["toolConfig"] == {"toolChoice": {"auto": {}}, "tools": [spec]}

    def test_a_bare_list_shows_no_missing_tools(self) -> None:
        """The body is unknown, so nothing is reported and nothing is added."""
        items = [GO, using("a"), answering("a")]
        assert problems(items, None) == []
        history = parse(items, None)
        assert repair_body(history, repair(history)[0]) == (None, [])

    def test_an_untouched_body_is_the_same_object(self) -> None:
        """There is nothing to copy where nothing changes."""
        body = request(GO)
        history = parse(body["messages"], body)
        assert repair_body(history, history.messages)[0] is body

    def test_manual_thinking_is_switched_off_when_reasoning_is_lost(self) -> None:
        """An unsigned thought is stripped, although extended thinking requires one."""
        thought = {"reasoningContent": {"reasoningText": {"text": "hm"}}}
        thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "top_k": 5}
        call = said("assistant", thought, *using("a")["content"])
        repaired, changes = run_repair(request(GO, call, answering("a"), additionalModelRequestFields=thinking))
        assert repaired["messages"][1] == using("a")
        assert repaired["additionalModelRequestFields"] == {"top_k": 5}
        assert {change.code for change in changes} == {"BR-8"}

    def test_reasoning_of_other_models_has_no_signature(self) -> None:
        """Only Claude signs; redacted reasoning is kept whole everywhere."""
        plain = said("assistant", {"reasoningContent": {"reasoningText": {"text": "hm"}}}, {"text": "hi"})
        hidden = said("assistant", {"reasoningContent": {"redactedContent": "AA=="}}, {"text": "hi"})
        assert codes(request(GO, plain, GO, modelId="deepseek.r1-v1:0")) == set()
        assert codes(request(GO, hidden, GO)) == set()
        assert codes(request(GO, plain, GO)) == {"BR-8"}

    def test_a_server_result_does_not_answer_a_call_of_the_client(self) -> None:
        """The result has no server tool use, so it is dropped and the call is closed, both in one pass."""
        served = {"toolUseId": "t", "content": [{"text": "x"}], "type": "nova_grounding_result"}
        body = request(GO, said("assistant", *using("t")["content"], {"toolResult": served}), GO)
        repaired, changes = run_repair(body)
        assert repaired["messages"][1] == using("t")
        assert repaired["messages"][2]["content"][0]["toolResult"]["toolUseId"] == "t"
        assert {change.code for change in changes} == {"BR-1", "BR-2", "BR-4"}
        assert faults(repaired, strict=False) == []
        assert run_repair(repaired) == (repaired, [])

    def test_system_messages(self) -> None:
        """It is valid after a user message and before an assistant message; elsewhere it becomes a user message."""
        note = said("system", {"text": "be brief"})
        assert codes(request(GO, note, HI, GO)) == set()
        body = request(note, GO, HI, note, GO)
        assert codes(body) == {"BR-4"}
        repaired, _ = run_repair(body)
        brief = {"text": "be brief"}
        assert repaired["messages"] == [said("user", brief, {"text": "go"}), HI, said("user", brief, {"text": "go"})]

    def test_a_system_message_does_not_part_use_and_result(self) -> None:
        """The result is inserted before it."""
        note = said("system", {"text": "be brief"})
        repaired, _ = run_repair(request(GO, using("a"), note, answering("a"), HI, GO))
        assert repaired["messages"] == [GO, using("a"), answering("a"), note, HI, GO]

    def test_blank_results(self) -> None:
        """A blank text is dropped; a placeholder replaces the only text; an empty success is valid."""
        for content, kept in (
            ([{"text": " "}, {"text": "x"}], [{"text": "x"}]),
            ([{"text": "\n"}], [{"text": NO_OUTPUT}]),
        ):
            body = request(GO, using("a"), answering("a", content=content))
            assert codes(body) == {"BR-6"}
            assert run_repair(body)[0]["messages"][2] == answering("a", content=kept)
        assert codes(request(GO, using("a"), answering("a", content=[]))) == set()

    def test_the_newest_cache_points_stay(self) -> None:
        """Those of system and tools count, and are not touched."""
        asked = said("user", {"text": "a"}, CACHE, {"text": "b"}, CACHE)
        body = request(asked, HI, asked, system=[{"text": "s"}, CACHE])
        repaired, _ = run_repair(body)
        assert repaired["messages"] == [said("user", {"text": "a"}, {"text": "b"}, CACHE), HI, asked]
        assert repaired["messages"][2] is body["messages"][2]

    def test_paths_name_the_given_payload(self) -> None:
        """Also after a dropped message."""
        _, changes = run_repair(request(GO, said("user"), using("a"), GO))
        assert [(change.code, change.path) for change in changes] == [
            ("BR-6", "messages[1]"),
            ("BR-1", "messages[2].content[0]"),
            ("BR-4", "messages[3].content[0]"),
        ]


blocks = st.sampled_from(
    [
        {"text": "a"},
        {"text": " "},
        {"toolUse": {"toolUseId": "a", "name": "read", "input": {}}},
        {"toolUse": {"toolUseId": "b/", "name": "re ad", "input": "{}"}},
        {"toolUse": {"toolUseId": "s", "name": "nova", "input": {}, "type": "server_tool_use"}},
        {"toolResult": {"toolUseId": "a", "content": [{"text": "x"}]}},
        {"toolResult": {"toolUseId": "a", "content": [{"json": [1]}], "status": "odd"}},
        {"toolResult": {"toolUseId": "b/", "content": [{"text": ""}]}},
        {"toolResult": {"toolUseId": "c", "content": [], "status": "error"}},
        {"toolResult": {"toolUseId": "c"}},
        {"toolResult": {"toolUseId": "s", "content": [{"text": "x"}], "type": "nova_result"}},
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln"}}},
        {"reasoningContent": {"reasoningText": {"text": "hm"}}},
        {"reasoningContent": {"redactedContent": "AA=="}},
        {"image": {"format": "png", "source": {"bytes": "AA=="}}},
        {"cachePoint": {"type": "default"}},
        {"hologram": {}},
        {},
    ]
)
roles = st.sampled_from(["user", "assistant", "user", "assistant", "system", "narrator"])
messages = st.builds(
    lambda role, items: {"role": role, "content": deepcopy(items)}, roles, st.lists(blocks, max_size=4)
)
requests = st.builds(
    lambda items, fields: {"messages": items, **fields},
    st.lists(messages, min_size=1, max_size=8),
    st.sampled_from(
        [
            {"modelId": CLAUDE, "additionalModelRequestFields": {"thinking": {"type": "enabled"}}},
            {"modelId": CLAUDE, "system": [{"text": "s"}, CACHE]},
            {"modelId": LLAMA},
            {},
        ]
    ),
)


def proofs(body: Body) -> list[Body]:
    """List the reasoning blocks of a request."""
    return [block for message in body["messages"] for block in message["content"] if "reasoningContent" in block]


class TestRepair:
    @given(broken("bedrock"), st.booleans())
    def test_single_faults(self, drawn: tuple[str, Body], strict: bool) -> None:
        """A valid history with one fault is repaired to the satisfaction of the judge."""
        name, body = drawn
        repaired, _ = run_repair(body, strict=strict)
        left = problems(repaired["messages"], repaired, strict=strict)
        assert not any(problem.repairable for problem in left), (name, left)
        if not left:
            assert faults(repaired, strict=strict) == [], name

    @settings(max_examples=400)
    @given(requests, st.booleans())
    def test_scrambled_histories(self, body: Body, strict: bool) -> None:
        """For any history repair terminates, is idempotent, mutates nothing and edits no reasoning."""
        before = deepcopy(body)
        repaired, _ = run_repair(body, strict=strict)
        assert body == before
        left = problems(repaired["messages"], repaired, strict=strict)
        assert not any(problem.repairable for problem in left), left
        again, changes = run_repair(repaired, strict=strict)
        assert changes == []
        assert all(one is other for one, other in zip(again["messages"], repaired["messages"], strict=True))
        assert all(any(block is was for was in proofs(body)) for block in proofs(repaired))

    @given(requests)
    def test_problems_and_changes_agree(self, body: Body) -> None:
        """A payload is changed if and only if it has a repairable problem."""
        found = [problem for problem in problems(body["messages"], body) if problem.repairable]
        assert bool(found) == bool(run_repair(body)[1])
