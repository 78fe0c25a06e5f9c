"""OpenAI Responses: parse and render are lossless, problems are reported, and one repair is enough."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.histories import bodies
from tests.histories.broken import broken
from tests.histories.broken_responses import RESPONSES
from tests.judges.openai_responses import judge

import kompakt
from kompakt.errors import MalformedPayload
from kompakt.model.groups import groups
from kompakt.model.messages import Media, Message, Opaque, Reasoning, Text, ToolCall, ToolResult
from kompakt.wire.openai_responses.items import BLANK, parse, render
from kompakt.wire.openai_responses.repair import repair
from kompakt.wire.openai_responses.rules import MAX_OUTPUT, problems

Body = dict[str, Any]

USER: Body = {"role": "user", "content": "go"}
PATIENT = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def items_of(body: Body) -> list[Any]:
    """List the items of a body as a caller does: a plain text is one item."""
    return [body["input"]] if isinstance(body["input"], str) else body["input"]


def run_repair(body: Body, *, strict: bool = False) -> tuple[Body, list[str]]:
    """Repair a body and return the codes of the changes."""
    messages, changes = repair(parse(items_of(body), body), strict=strict)
    items = [item for message in messages for item in render(message)]
    bare = len(items) == 1 and isinstance(items[0], str)
    return {**body, "input": items[0] if bare else items}, [change.code for change in changes]


def check(*items: Any, strict: bool = False, **body: Any) -> list[str]:
    """List problems as code and path."""
    return [f"{found.code} {found.path}" for found in problems(items, body, strict=strict)]


def call(call_id: str = "a", **fields: Any) -> Body:
    """Write a function call."""
    return {"type": "function_call", "call_id": call_id, "name": "read", "arguments": "{}", **fields}


def output(call_id: str = "a", **fields: Any) -> Body:
    """Write its output."""
    return {"type": "function_call_output", "call_id": call_id, "output": "done", **fields}


def thought(item_id: str, **fields: Any) -> Body:
    """Write a reasoning item."""
    return {"type": "reasoning", "id": item_id, "summary": [], "encrypted_content": "gAAA", **fields}


def said(text: str = "hi", **fields: Any) -> Body:
    """Write a message of the model."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, **fields}


class TestDeveloperMessages:
    """Codex puts its own instructions between a call and its output."""

    HISTORY = (USER, call("a"), call("b"), {"role": "developer", "content": "be brief"}, output("a"), output("b"))

    def test_they_may_be_between_a_call_and_its_output(self) -> None:
        """OpenAI accepts that; some compatible servers do not."""
        assert check(*self.HISTORY) == []
        assert check(USER, call(), {"role": "system", "content": "be brief"}, output()) == []
        assert "OR-1 input[4]" in check(*self.HISTORY, strict=True)

    def test_a_user_message_may_not(self) -> None:
        """It is another turn."""
        assert check(USER, call(), USER, output()) == ["OR-1 input[3]"]

    def test_a_repair_of_something_else_leaves_them_there(self) -> None:
        """Only what is wrong moves."""
        body, codes = run_repair({"input": [*self.HISTORY, call("c")]})
        assert codes == ["OR-1"]
        assert body["input"][: len(self.HISTORY)] == list(self.HISTORY)

    def test_a_call_that_is_open_at_one_is_closed_after_it(self) -> None:
        """The output still follows its call."""
        body, _ = run_repair({"input": [USER, call(), {"role": "developer", "content": "be brief"}, USER]})
        assert [item.get("type", item.get("role")) for item in body["input"]] == [
            "user",
            "function_call",
            "developer",
            "function_call_output",
            "user",
        ]
        assert check(*body["input"]) == []


class TestCompaction:
    @pytest.mark.parametrize(
        "between",
        [
            {"role": "developer", "content": "be brief " * 20},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hm " * 50}]},
            {"type": "of_the_future", "data": "x " * 50},
        ],
        ids=["instructions", "words of the same answer", "an unknown item"],
    )
    def test_call_and_output_stay_together_for_any_item_between_them(self, between: Body) -> None:
        """A summary of other messages is never placed between the two."""
        rounds = [item for n in range(8) for item in (call(f"c{n}"), between, output(f"c{n}", output="word " * 60))]
        changed = 0
        for budget in range(150, 2_000, 50):
            try:
                done = kompakt.compact([USER, *rounds], budget, format="openai-responses")
            except kompakt.DoesNotFit:
                continue
            changed += done.changed
            assert [problem for problem in kompakt.check(done.payload, "openai-responses") if problem.repairable] == []
        assert changed > 5


class TestParse:
    @PATIENT
    @given(bodies("openai-responses"))
    def test_every_item_comes_out_as_the_object_it_came_in_as(self, body: Body) -> None:
        """Reading and writing change nothing and copy nothing."""
        history = parse(items_of(body), body)
        written = [item for message in history for item in render(message)]
        assert len(written) == len(items_of(body))
        assert all(one is other for one, other in zip(written, items_of(body), strict=True))

    def test_the_envelope_is_read(self) -> None:
        """Instructions are the system prompt; model and tools come from the body."""
        body = {"model": "gpt-5.4", "instructions": "Be brief.", "tools": [{"type": "web_search"}], "input": "hello"}
        history = parse(["hello"], body)
        assert (history.model, history.tools) == ("gpt-5.4", ({"type": "web_search"},))
        assert [message.text for message in history.system] == ["Be brief."]
        assert history[0] == Message("user", (Text("hello"),), None, "hello")

    def test_an_mcp_call_carries_its_output_and_its_approval(self) -> None:
        """The output inside a hosted call is a result, and request, answer and call are one group."""
        asked = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "q", "arguments": "{}", "server_label": "db"}
        answered = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
        called = {**asked, "type": "mcp_call", "id": "mcp_1", "approval_request_id": "mcpr_1", "output": "42 rows"}
        history = parse([USER, asked, answered, called], None)
        assert history[3].calls[0].follows == "mcpr_1"
        assert history[3].results[0].output == "42 rows"
        assert [len(group) for group in groups(history.messages)] == [1, 3]

    def test_reasoning_keeps_its_blob(self) -> None:
        """The text is the summary's, the blob the server's."""
        summary = [{"type": "summary_text", "text": "thinking"}]
        part = parse([thought("rs_1", summary=summary)], None)[0].parts[0]
        assert type(part) is Reasoning
        assert (part.text, part.blob) == ("thinking", "gAAA")

    def test_unknown_items_are_kept(self) -> None:
        """An unknown item and an unknown content part are kept whole."""
        items = [{"type": "telepathy", "x": 1}, {"role": "user", "content": [{"type": "input_smell", "smell": "rain"}]}]
        history = parse(items, None)
        assert [type(message.parts[0]) for message in history] == [Opaque, Opaque]
        assert [render(message)[0] for message in history] == items

    @pytest.mark.parametrize(
        ("item", "path"),
        [
            (7, "input[1]"),
            ({"role": "user", "content": 7}, "input[1].content"),
            ({"role": "user", "content": [7]}, "input[1].content[0]"),
            ({"type": "message", "content": "x"}, "input[1].role"),
            ({"type": "function_call", "call_id": 7}, "input[1].call_id"),
            ({"type": "function_call_output", "call_id": "a", "output": 7}, "input[1].output"),
            ({"type": "reasoning", "summary": "x"}, "input[1].summary"),
            ({"type": "message", "role": "user", "content": "x", "id": 7}, "input[1].id"),
        ],
    )
    def test_a_wrong_type_is_named_with_its_path(self, item: Any, path: str) -> None:
        """The error names the position in the payload."""
        with pytest.raises(MalformedPayload) as caught:
            parse([USER, item], None)
        assert caught.value.path == path


class TestRender:
    def test_an_edited_text_keeps_the_rest_of_its_item(self) -> None:
        """An edit is laid over a copy; the original is not written to."""
        item = said(id="msg_1", status="completed", x_trace=7)
        before = deepcopy(item)
        message = parse([item], None)[0]
        part = message.parts[0]
        assert type(part) is Text
        edited = message.with_parts([Text("short", part.raw, edited=True)])
        assert render(edited) == [{**item, "content": [{**item["content"][0], "text": "short"}]}]
        assert item == before

    def test_a_renamed_result_keeps_its_pictures(self) -> None:
        """Another id does not rewrite what was answered."""
        seen = [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:image/png;base64,AA=="}]
        item = output("c" * 65, output=seen)
        fixed, _ = run_repair({"input": [USER, call("c" * 65), item]})
        assert fixed["input"][2]["output"] is seen
        assert fixed["input"][2]["call_id"] == fixed["input"][1]["call_id"] != "c" * 65

    @pytest.mark.parametrize(
        ("item", "written"),
        [
            (output(), "gone"),
            ({"type": "local_shell_call_output", "id": "a", "output": "{}"}, "gone"),
            (
                {"type": "shell_call_output", "call_id": "a", "output": [{"stdout": "x", "stderr": "y"}]},
                [{"stdout": "gone", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
            ),
            (
                {"type": "computer_call_output", "call_id": "a", "output": {"type": "computer_screenshot"}},
                {"type": "computer_screenshot", "image_url": BLANK},
            ),
        ],
    )
    def test_a_shortened_output_has_the_shape_of_its_kind(self, item: Body, written: Any) -> None:
        """Each output type has its own field for the new text."""
        message = parse([item], None)[0]
        result = message.results[0]
        shorter = ToolResult(result.call_id, "gone", raw=result.raw, edited=True)
        assert render(message.with_parts([shorter])) == [{**item, "output": written}]

    def test_a_message_of_another_provider_becomes_items(self) -> None:
        """Text, calls and results become separate items; foreign reasoning is left out."""
        parts = (Reasoning("hm", "sig", raw={"type": "thinking"}), Text("Reading."), ToolCall("a", "read", {"p": "é"}))
        answer = Message("user", (ToolResult("a", "done"), Text("go on"), Media("image", "image/png", "AA==")))
        assert render(Message("assistant", parts)) == [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Reading."}]},
            {"type": "function_call", "call_id": "a", "name": "read", "arguments": '{"p": "é"}'},
        ]
        picture = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
        assert render(answer) == [
            output(),
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}, picture]},
        ]


class TestProblems:
    @PATIENT
    @given(bodies("openai-responses"))
    def test_a_history_that_is_taken_has_none(self, body: Body) -> None:
        """No false alarm, strict or not."""
        assert problems(items_of(body), body) == []
        assert problems(items_of(body), body, strict=True) == []

    @pytest.mark.parametrize(
        ("code", "body"),
        [pytest.param(code, body, id=f"{code} {name}") for code, cases in RESPONSES.items() for name, body in cases],
    )
    def test_each_rule_is_reported_and_repaired(self, code: str, body: Body) -> None:
        """A broken body reports its code; after repair only unrepairable problems remain."""
        before = deepcopy(body)
        assert code in [found.code for found in problems(items_of(body), body)]
        fixed, _ = run_repair(body)
        left = problems(items_of(fixed), fixed)
        assert body == before
        assert not [found for found in left if found.repairable]
        assert left or judge(fixed) == []

    def test_paths_name_the_field(self) -> None:
        """A problem has the path of its place."""
        assert check(USER, output("x")) == ["OR-2 input[1].call_id"]
        assert check(USER, said(id="x")) == ["OR-7 input[1].id"]
        assert check(USER, call(), output("a", output="x" * (MAX_OUTPUT + 1))) == ["OR-8 input[2].output"]
        assert check(previous_response_id="r", conversation="c") == ["OR-11 previous_response_id"]

    def test_the_server_may_hold_the_call(self) -> None:
        """With earlier items on the server an output without its call is right."""
        assert check(output(), previous_response_id="resp_1") == []
        assert check(output(), conversation="conv_1") == []
        assert run_repair({"input": [output(), call("b")], "conversation": "c"})[1] == ["OR-1"]

    def test_text_of_the_same_answer_may_precede_the_output(self) -> None:
        """OpenAI accepts them, so only the strict check reports them; text of a later answer is always a problem."""
        assert check(USER, call(), said(), output()) == []
        assert check(USER, call(), said(), output(), strict=True) == ["OR-1 input[3]"]
        assert check(USER, call(), call("b"), output(), said(), output("b")) == ["OR-1 input[5]"]

    def test_an_id_without_reasoning_is_suspect_only_where_the_model_reasons(self) -> None:
        """Without any reasoning there is no hint that an id needs it."""
        answer = [said(id="msg_1"), USER]
        assert check(USER, *answer) == []
        assert check(USER, *answer, thought("rs_1"), said(id="msg_2")) == ["OR-3 input[1].id"]

    def test_strict_wants_a_user(self) -> None:
        """Some servers reject a history without a user message."""
        body = {"input": [said()]}
        assert check(said(), strict=True) == ["VL-2 input"]
        assert judge(run_repair(body, strict=True)[0]) == []

    def test_strict_wants_a_user_after_a_resting_call_is_closed(self) -> None:
        """The output that closes the call is the last item then, so no user message comes next."""
        once = kompakt.repair({"input": [call()]}, "openai-responses", strict=True, resting=True)
        assert [change.code for change in once.changes] == ["OR-1", "VL-2"] and once.remaining == ()
        assert kompakt.repair(once.payload, "openai-responses", strict=True, resting=True).changes == ()


class TestRepair:
    @pytest.mark.parametrize(
        ("opened", "closed"),
        [
            (call(), "function_call_output"),
            ({"type": "custom_tool_call", "call_id": "a", "name": "x", "input": ""}, "custom_tool_call_output"),
            (
                {"type": "local_shell_call", "id": "lsh_1", "call_id": "a", "action": {}, "status": "completed"},
                "local_shell_call_output",
            ),
            ({"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}}, "shell_call_output"),
            (
                {"type": "apply_patch_call", "call_id": "a", "operation": {}, "status": "completed"},
                "apply_patch_call_output",
            ),
            ({"type": "tool_search_call", "call_id": "a", "arguments": {}}, "tool_search_output"),
        ],
    )
    def test_an_open_call_is_closed_by_an_output_of_its_kind(self, opened: Body, closed: str) -> None:
        """The output directly follows the call and states that it was interrupted."""
        fixed, codes = run_repair({"input": [USER, opened, USER]})
        assert codes == ["OR-1"]
        assert [item.get("type") for item in fixed["input"]] == [None, opened["type"], closed, None]
        assert judge(fixed) == []

    def test_an_open_computer_call_goes_with_its_reasoning(self) -> None:
        """No screenshot can be made up; what followed loses the id that needed the reasoning."""
        click = {"type": "computer_call", "id": "cu_1", "call_id": "x", "status": "completed"}
        items = [USER, thought("rs_1"), {**click, "pending_safety_checks": []}, said(id="msg_1"), USER]
        fixed, codes = run_repair({"input": items})
        assert codes == ["OR-1", "OR-4", "OR-3"]
        assert fixed["input"] == [USER, said(), USER]

    def test_an_output_is_cut_and_not_dropped(self) -> None:
        """The part that is taken stays."""
        fixed, codes = run_repair({"input": [USER, call(), output("a", output="x" * (MAX_OUTPUT + 5))]})
        assert codes == ["OR-8"]
        assert len(fixed["input"][2]["output"]) == MAX_OUTPUT

    def test_changes_name_the_original_positions(self) -> None:
        """Paths are those of the given payload, also after dropped items."""
        items = [{"type": "compaction_trigger"}, USER, call(), USER]
        _, changes = repair(parse(items, None))
        assert [f"{change.code} {change.path}" for change in changes] == ["OR-10 input[0]", "OR-1 input[2].call_id"]

    @PATIENT
    @given(broken("openai-responses"), st.booleans())
    def test_one_repair_is_enough(self, case: tuple[str, Body], strict: bool) -> None:
        """After one repair nothing is left to repair, a second one changes nothing, and the judge agrees."""
        _, body = case
        before = deepcopy(body)
        fixed, codes = run_repair(body, strict=strict)
        left = problems(items_of(fixed), fixed, strict=strict)
        again, repeated = run_repair(fixed, strict=strict)
        assert body == before
        assert not [found for found in left if found.repairable]
        assert bool(codes) == any(found.repairable for found in problems(items_of(body), body, strict=strict))
        assert repeated == []
        assert all(one is other for one, other in zip(items_of(again), items_of(fixed), strict=True))
        if strict and not left:
            assert judge(fixed) == []

    @PATIENT
    @given(broken("openai-responses"))
    def test_encrypted_items_are_kept_or_removed_whole(self, case: tuple[str, Body]) -> None:
        """Reasoning and compactions that are kept are the original objects."""
        _, body = case
        sealed = ("reasoning", "compaction")
        given_items = {id(item) for item in items_of(body) if isinstance(item, dict) and item.get("type") in sealed}
        fixed, _ = run_repair(body)
        kept = [item for item in items_of(fixed) if isinstance(item, dict) and item.get("type") in sealed]
        assert {id(item) for item in kept} <= given_items
