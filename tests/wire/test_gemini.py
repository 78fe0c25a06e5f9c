"""Gemini: parse and render keep every byte, and what repair leaves is what the contract allows."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.histories import bodies
from tests.histories.broken import broken
from tests.histories.broken_gemini import GEMINI
from tests.judges import judge

from kompakt.errors import MalformedPayload
from kompakt.model.groups import groups
from kompakt.model.messages import Media, Message, Opaque, Reasoning, Text, ToolCall, ToolResult
from kompakt.model.phrases import BRIDGE, CONTINUE_LINE, INTERRUPTED, RESUME_LINE
from kompakt.wire.gemini.contents import CONTRACT, parse, render
from kompakt.wire.gemini.rules import SENTINEL, problems, repair
from kompakt.wire.wire import Change

Body = dict[str, Any]

ASK: Body = {"role": "user", "parts": [{"text": "go"}]}
ANSWER: Body = {"role": "model", "parts": [{"text": "hi"}]}


def calling(*names: str, **fields: Any) -> Body:
    return {"role": "model", "parts": [{"functionCall": {"name": name, "args": {}, **fields}} for name in names]}


def answering(*names: str, **fields: Any) -> Body:
    response = {"response": {"output": "done"}, **fields}
    return {"role": "user", "parts": [{"functionResponse": {"name": name, **response}} for name in names]}


def request(*contents: Body, model: str = "gemini-2.5-pro", **fields: Any) -> Body:
    return {"model": model, "contents": list(contents), **fields}


def run_repair(body: Body, *, strict: bool = False) -> tuple[Body, list[Change]]:
    """Repair a request and write it again."""
    messages, changes = repair(parse(body["contents"], body), strict=strict)
    return {**body, "contents": [wire for message in messages for wire in render(message)]}, changes


def codes(body: Body, *, strict: bool = False) -> set[str]:
    return {problem.code for problem in problems(body["contents"], body, strict=strict)}


def faults(body: Body) -> list[str]:
    """Return the faults that the judge finds."""
    return judge("gemini", body)


class TestParse:
    def test_both_spellings_read_alike(self) -> None:
        """An SDK's snake_case dump and the API's camelCase give the same values."""
        camel = [calling("f", id="1"), answering("f", id="1")]
        snake = [
            {"role": "model", "parts": [{"function_call": {"name": "f", "args": {}, "id": "1"}}]},
            {
                "role": "user",
                "parts": [{"function_response": {"name": "f", "response": {"output": "done"}, "id": "1"}}],
            },
        ]
        for items in (camel, snake):
            call, result = (message.parts[0] for message in parse(items, None))
            assert isinstance(call, ToolCall) and isinstance(result, ToolResult)
            assert (call.id, call.name, result.call_id, result.output) == ("1", "f", "1", "done")

    def test_calls_without_an_id_pair_by_name_and_occurrence(self) -> None:
        """Two calls of one function and their two responses are one group, and the next call another."""
        items = [ASK, calling("f", "f"), answering("f", "f"), calling("f"), answering("f")]
        assert [len(group) for group in groups(parse(items, None).messages)] == [1, 2, 2]

    def test_a_response_without_id_answers_a_call_with_one(self) -> None:
        """Callers often drop the id; the name still finds the call."""
        call, result = (message.parts[0] for message in parse([calling("f", id="x"), answering("f")], None))
        assert isinstance(call, ToolCall) and isinstance(result, ToolResult)
        assert call.id == result.call_id == "x"

    def test_a_surplus_response_does_not_replace_an_older_one(self) -> None:
        """When the call of the second response was lost, the first response keeps its call."""
        lost = {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "late"}}}]}
        body, _ = run_repair(request(ASK, calling("f"), answering("f"), ANSWER, lost))
        assert body["contents"][:4] == [ASK, calling("f"), answering("f"), ANSWER]

    def test_kinds_of_parts(self) -> None:
        """Thoughts, media, hosted code and unknown parts get their own types and keep their wire form."""
        parts: list[Body] = [
            {"text": "hm", "thought": True, "thoughtSignature": "c2ln"},
            {"inlineData": {"mimeType": "image/png", "data": "AA=="}},
            {"fileData": {"mimeType": "audio/wav", "fileUri": "gs://a"}},
            {"executableCode": {"language": "PYTHON", "code": "1"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "no"}},
            {"hologram": {"x": 1}},
            {"text": "ok", "thoughtSignature": "c2ln"},
        ]
        message = parse([{"role": "model", "parts": parts}], None)[0]
        thought, image, audio, code, ran, unknown, said = message.parts
        assert thought == Reasoning("hm", "c2ln", raw=parts[0])
        assert image == Media("image", "image/png", "AA==", raw=parts[1])
        assert audio == Media("audio", "audio/wav", url="gs://a", raw=parts[2])
        assert isinstance(code, ToolCall) and code.hosted
        assert isinstance(ran, ToolResult) and ran.hosted and ran.is_error and ran.output == "no"
        assert unknown == Opaque("hologram", parts[5])
        assert said == Text("ok", parts[6])

    def test_envelope(self) -> None:
        """Model, tools and system instruction come from the body."""
        tools = [{"functionDeclarations": []}]
        for system in ({"parts": [{"text": "be brief"}]}, "be brief"):
            for key in ("systemInstruction", "system_instruction"):
                history = parse([ASK], request(ASK, tools=tools, **{key: system}))
                assert (history.model, history.tools, history.system[0].text) == (
                    "gemini-2.5-pro",
                    (tools[0],),
                    "be brief",
                )
                assert render(history.system[0]) == [system]

    @pytest.mark.parametrize(
        ("item", "path"),
        [
            ("hi", "contents[1]"),
            ({"role": 1, "parts": []}, "contents[1].role"),
            ({"role": "user", "parts": "hi"}, "contents[1].parts"),
            ({"role": "user", "parts": ["hi"]}, "contents[1].parts[0]"),
            ({"role": "user", "parts": [{"text": 3}]}, "contents[1].parts[0].text"),
            ({"role": "model", "parts": [{"functionCall": "f"}]}, "contents[1].parts[0].functionCall"),
            ({"role": "model", "parts": [{"functionCall": {"name": 1}}]}, "contents[1].parts[0].functionCall.name"),
        ],
    )
    def test_wrong_types_name_their_path(self, item: Any, path: str) -> None:
        """The error has the path of the wrong value."""
        with pytest.raises(MalformedPayload) as caught:
            parse([ASK, item], None)
        assert caught.value.path == path


class TestRender:
    @given(bodies("gemini"))
    def test_untouched_contents_are_the_same_objects(self, body: Body) -> None:
        """Parse and render return the caller's own objects."""
        history = parse(body["contents"], body)
        rendered = [wire for message in history for wire in render(message)]
        assert all(one is other for one, other in zip(rendered, body["contents"], strict=True))

    @given(bodies("gemini"))
    def test_rebuilt_contents_are_equal(self, body: Body) -> None:
        """A message marked as edited but unchanged is equal to the original."""
        for message in parse(body["contents"], body):
            assert render(message.with_parts(message.parts)) == [message.raw]

    def test_an_edit_is_laid_over_the_part(self) -> None:
        """Other fields stay; an id is not invented; the key of the output stays."""
        raw = {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"result": "long"}, "x": 1}}]}
        message = parse([calling("f"), raw], None)[1]
        edited = msgspec.structs.replace(message.results[0], output="short", edited=True)
        assert render(message.with_parts([edited]))[0]["parts"] == [
            {"functionResponse": {"name": "f", "response": {"result": "short"}, "x": 1}}
        ]

    def test_an_edited_text_loses_its_signature(self) -> None:
        """A signature is valid only for the text that was signed."""
        message = parse([{"role": "model", "parts": [{"text": "long", "thoughtSignature": "c2ln"}]}], None)[0]
        edited = message.with_parts([msgspec.structs.replace(message.parts[0], text="short", edited=True)])
        assert render(edited)[0]["parts"] == [{"text": "short"}]

    def test_neutral_messages(self) -> None:
        """A message of another provider is built from its parts; foreign reasoning is left out."""
        call = Message("assistant", (Reasoning("hm"), ToolCall("c1", "f", '{"a": 1}')))
        result = Message("tool", (ToolResult("c1", "no", "f", is_error=True),))
        assert render(call) == [
            {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "f", "args": {"a": 1}}}]}
        ]
        assert render(result) == [
            {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "f", "response": {"error": "no"}}}]}
        ]
        assert render(Message("assistant", (Reasoning("hm"),))) == []
        image = Media("image", "image/png", "AA==")
        assert render(Message("user", (image,)))[0]["parts"] == [
            {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
        ]


class TestRules:
    @given(bodies("gemini"))
    def test_valid_bodies_are_left_alone(self, body: Body) -> None:
        """No problem is seen and no object replaced."""
        repaired, changes = run_repair(body)
        assert problems(body["contents"], body) == [] == changes
        assert all(one is other for one, other in zip(repaired["contents"], body["contents"], strict=True))

    @pytest.mark.parametrize(
        ("code", "body"),
        [pytest.param(code, body, id=f"{code} {name}") for code in GEMINI for name, body in GEMINI[code]],
    )
    def test_each_code_is_reported_and_repaired(self, code: str, body: Body) -> None:
        """The broken examples report their code, and repair leaves nothing repairable."""
        given = deepcopy(body)
        strict = code == "GE-9"
        found = problems(body["contents"], body, strict=strict)
        assert code in {problem.code for problem in found}
        repaired, changes = run_repair(body, strict=strict)
        assert body == given
        if all(problem.repairable for problem in found):
            assert changes and codes(repaired, strict=strict) == set()
            assert faults(repaired) == []

    def test_an_open_call_is_closed_as_interrupted(self) -> None:
        """The response has the call's name, its id when there is one, and its spelling."""
        for fields in ({}, {"id": "7"}, {"id": "f"}):
            repaired, _ = run_repair(request(ASK, calling("f", **fields)))
            response = {**fields, "name": "f", "response": {"error": INTERRUPTED}}
            assert repaired["contents"][-1] == {"role": "user", "parts": [{"functionResponse": response}]}
        snake: Body = {"role": "model", "parts": [{"function_call": {"name": "f", "args": {}}}]}
        repaired, _ = run_repair(request(ASK, snake))
        assert "function_response" in repaired["contents"][-1]["parts"][0]

    def test_responses_and_the_next_prompt_stay_apart(self) -> None:
        """Merging them would move the start of the current turn (GE-6), so a content of the model separates them
        (GE-7).
        """
        body = request(ASK, calling("f"), answering("f"), ASK)
        assert codes(body) == {"GE-7"}
        repaired, changes = run_repair(body)
        assert repaired["contents"][2:] == [answering("f"), {"role": "model", "parts": [{"text": BRIDGE}]}, ASK]
        assert [change.code for change in changes] == ["GE-7"]
        repaired, changes = run_repair(request(ASK, calling("f"), ASK))
        assert [content["role"] for content in repaired["contents"]] == ["user", "model", "user", "model", "user"]
        assert [change.code for change in changes] == ["GE-3", "GE-7"]
        both = {"role": "user", "parts": [*answering("f")["parts"], *ASK["parts"]]}
        assert codes(request(ASK, calling("f"), both)) == set()

    def test_prompts_after_responses_are_merged(self) -> None:
        """They are one prompt after the content of the model."""
        body = request(ASK, calling("f"), answering("f"), ASK, ASK)
        assert codes(body) == {"GE-7"}
        assert run_repair(body)[0]["contents"][4:] == [{"role": "user", "parts": [{"text": "go"}, {"text": "go"}]}]

    def test_calls_streamed_as_several_contents_become_one_step(self) -> None:
        """Their signed parts stay separate parts, byte-equal."""
        first = {"functionCall": {"name": "a", "args": {}}, "thoughtSignature": "c2ln"}
        second = {"functionCall": {"name": "b", "args": {}}, "thoughtSignature": "b3Ro"}
        model = [{"role": "model", "parts": [first]}, {"role": "model", "parts": [second]}]
        repaired, _ = run_repair(request(ASK, *model, answering("a", "b"), model="gemini-3-pro"))
        assert repaired["contents"] == [ASK, {"role": "model", "parts": [first, second]}, answering("a", "b")]

    def test_responses_in_contents_of_their_own_come_together(self) -> None:
        """Parallel responses that were sent one by one all follow the calls."""
        repaired, _ = run_repair(request(ASK, calling("a", "b"), answering("a"), answering("b")))
        assert repaired["contents"] == [ASK, calling("a", "b"), answering("a", "b")]

    def test_the_sentinel_is_for_the_current_turn_only(self) -> None:
        """Earlier turns are not validated and stay as they are."""
        old = [ASK, calling("f"), answering("f"), ANSWER]
        body = request(*old, ASK, calling("f", "g"), answering("f", "g"), model="models/gemini-3-flash")
        repaired, changes = run_repair(body)
        assert [change.code for change in changes] == ["GE-4"]
        assert all(one is other for one, other in zip(repaired["contents"][:5], body["contents"][:5], strict=True))
        first, second = repaired["contents"][5]["parts"]
        assert first == {**calling("f")["parts"][0], "thoughtSignature": SENTINEL}
        assert second is body["contents"][5]["parts"][1]

    @pytest.mark.parametrize("model", ["gemini-2.5-pro", "gemini-3-pro-image-preview", None])
    def test_other_models_need_no_signature(self, model: str | None) -> None:
        """A body without a model cannot show the rule either."""
        assert codes({"model": model, "contents": [ASK, calling("f"), answering("f")]}) == set()

    def test_roles_of_older_sdks(self) -> None:
        """Responses with the role function belong to the user; the role is corrected."""
        old = {**answering("f"), "role": "function"}
        body = request(ASK, calling("f"), old)
        assert codes(body) == {"GE-7"}
        assert run_repair(body)[0]["contents"] == [ASK, calling("f"), answering("f")]

    def test_a_single_content_needs_no_role(self) -> None:
        """As in the provider's own first example."""
        assert codes(request({"parts": [{"text": "hi"}]})) == set()
        assert codes(request({"parts": [{"text": "hi"}]}, ANSWER, ASK)) == {"GE-7"}

    def test_an_unknown_role_is_passed_on(self) -> None:
        """It is unknown who wrote them."""
        strange = {"role": "narrator", "parts": [{"text": "meanwhile"}]}
        body = request(ASK, strange, ASK)
        assert [problem.repairable for problem in problems(body["contents"], body)] == [False]
        assert run_repair(body) == (body, [])

    def test_thoughts_are_hygiene(self) -> None:
        """Gemini accepts them; with strict they are reported and stripped."""
        thinking = {"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": "hi"}]}
        body = request(ASK, thinking, ASK)
        assert (codes(body), codes(body, strict=True)) == (set(), {"GE-9"})
        assert run_repair(body, strict=True)[0]["contents"][1] == ANSWER

    def test_names_and_ids_follow_the_call(self) -> None:
        """A response gets the name and the id of the call it answers."""
        body = request(ASK, calling("f", id="1"), answering("f"))
        assert codes(body) == {"GE-8"}
        response = run_repair(body)[0]["contents"][2]["parts"][0]["functionResponse"]
        assert response == {"id": "1", "name": "f", "response": {"output": "done"}}

    def test_data_that_is_no_object(self) -> None:
        """Arguments and responses are wrapped, except in a signed part."""
        loose = request(ASK, calling("f", args='{"a": 1}'), answering("f", response="done"))
        repaired = run_repair(loose)[0]["contents"]
        assert repaired[1]["parts"][0]["functionCall"]["args"] == {"a": 1}
        assert repaired[2]["parts"][0]["functionResponse"]["response"] == {"output": "done"}
        signed = deepcopy(loose)
        signed["contents"][1]["parts"][0]["thoughtSignature"] = "c2ln"
        assert not all(problem.repairable for problem in problems(signed["contents"], signed))
        assert run_repair(signed)[0]["contents"][1] is signed["contents"][1]

    def test_parts_on_the_wrong_side_change_sides(self) -> None:
        """A call in a user content and its response in a model content."""
        body = request(
            {"role": "user", "parts": [*ASK["parts"], *calling("f")["parts"]]}, {**answering("f"), "role": "model"}
        )
        assert {"GE-1", "GE-2"} <= codes(body)
        assert run_repair(body)[0]["contents"] == [ASK, calling("f"), answering("f")]

    def test_frame(self) -> None:
        """The texts of added user contents are fixed."""
        texts = [content["parts"][0]["text"] for content in run_repair(request(ANSWER))[0]["contents"]]
        assert texts == [RESUME_LINE, "hi", CONTINUE_LINE]

    def test_paths_name_the_given_payload(self) -> None:
        """Also after a dropped content."""
        empty: Body = {"role": "user", "parts": []}
        _, changes = run_repair(request(ASK, empty, calling("f"), ASK))
        assert [(change.code, change.path) for change in changes] == [
            ("GE-7", "contents[1]"),
            ("GE-3", "contents[2].parts[0]"),
            ("GE-7", "contents[3].parts[0]"),
        ]

    def test_contract(self) -> None:
        """Ids are names here: nothing is ever renamed."""
        assert (CONTRACT.ids.scope, CONTRACT.results) == ("none", "next-user-message")
        body = request(ASK, calling("f", "f"), answering("f", "f"), calling("f"), answering("f"))
        assert run_repair(body) == (body, [])


parts = st.sampled_from(
    [
        {"text": "a"},
        {"text": ""},
        {"text": "", "thoughtSignature": "c2ln"},
        {"text": "b", "thoughtSignature": "c2ln"},
        {"text": "hm", "thought": True},
        {"functionCall": {"name": "f", "args": {}}},
        {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "c2ln"},
        {"functionCall": {"name": "g", "id": "1", "args": {}}},
        {"function_call": {"name": "f", "id": "2"}},
        {"functionResponse": {"name": "f", "response": {"output": "x"}}},
        {"functionResponse": {"name": "g", "response": {"error": "x"}}},
        {"functionResponse": {"name": "g", "id": "1", "response": {}}},
        {"function_response": {"name": "f", "id": "2", "response": {"a": 2**70}}},
        {"executableCode": {"code": "1"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"toolCall": {"id": "t", "toolType": "SEARCH"}},
        {"toolResponse": {"id": "t", "toolType": "SEARCH", "response": {}}},
        {"inlineData": {"mimeType": "image/png", "data": "AA=="}},
        {"hologram": {}},
        {},
    ]
)
roles = st.sampled_from(["user", "model", "user", "model", "function", "system", "narrator"])
contents = st.builds(lambda role, items: {"role": role, "parts": deepcopy(items)}, roles, st.lists(parts, max_size=4))
requests = st.builds(
    lambda model, items: {"model": model, "contents": items},
    st.sampled_from(["gemini-3-pro-preview", "gemini-2.5-pro"]),
    st.lists(contents, min_size=1, max_size=8),
)


def signed_parts(body: Body) -> list[Body]:
    items = [part for content in body["contents"] for part in content["parts"]]
    return [part for part in items if part.get("thoughtSignature") not in (None, SENTINEL)]


class TestRepair:
    @given(broken("gemini"), st.booleans())
    def test_single_faults(self, drawn: tuple[str, Body], strict: bool) -> None:
        """A valid history with one fault is repaired to the satisfaction of the judge."""
        name, body = drawn
        repaired, _ = run_repair(body, strict=strict)
        left = problems(repaired["contents"], repaired, strict=strict)
        assert not any(problem.repairable for problem in left), (name, left)
        if not left:
            assert [fault for fault in faults(repaired) if strict or not fault.startswith("GE-9")] == [], name

    @settings(max_examples=400)
    @given(requests, st.booleans())
    def test_scrambled_histories(self, body: Body, strict: bool) -> None:
        """For any history repair terminates, is idempotent, mutates nothing and forges no signed part."""
        before = deepcopy(body)
        repaired, _ = run_repair(body, strict=strict)
        assert body == before
        left = problems(repaired["contents"], repaired, strict=strict)
        assert not any(problem.repairable for problem in left), left
        again, changes = run_repair(repaired, strict=strict)
        assert changes == []
        assert all(one is other for one, other in zip(again["contents"], repaired["contents"], strict=True))
        assert all(any(part is was for was in signed_parts(body)) for part in signed_parts(repaired))

    @given(requests)
    def test_problems_and_changes_agree(self, body: Body) -> None:
        """A payload is changed if and only if it has a repairable problem."""
        found = [problem for problem in problems(body["contents"], body) if problem.repairable]
        assert bool(found) == bool(run_repair(body)[1])
