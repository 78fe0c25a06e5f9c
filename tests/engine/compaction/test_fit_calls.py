"""Inputs of answered calls are shortened as a last resort; name and id stay."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.histories.messages import assistant, result, tool, user

import kompakt
from kompakt.engine.compaction.fit import fit
from kompakt.engine.context.context import Context
from kompakt.model.messages import ToolCall

WRITTEN = "\n".join(f"value_{number} = {number * 7}  # kept for the report" for number in range(3_000))
REMARK = "As agreed, one value a line. " * 12
INPUT = {"file_path": "src/app/values.py", "content": WRITTEN, "remark": REMARK, "lines": 3_000}
TEXT = json.dumps(INPUT)
BUDGET = 2_000
FORMATS = ("openai-chat", "openai-responses", "anthropic", "gemini", "bedrock")


CALLED = [user("Write the values."), assistant("Now.", ToolCall("c1", "write_file", INPUT))]
ANSWER = tool(result("c1", "written"))


def written(format: str) -> Any:
    """Give a history whose newest call wrote a large file."""
    return kompakt.render([*CALLED, ANSWER], format)


def given_to(payload: Any, format: str) -> Any:
    """Return what the only call is given."""
    (found,) = [part for message in kompakt.parse(payload, format) for part in message.calls]
    return json.loads(found.input) if isinstance(found.input, str) else found.input


@pytest.mark.parametrize("format", FORMATS)
class TestEveryFormat:
    def test_fits_and_is_accepted(self, format: str) -> None:
        """Only the long text is cut: the path, the remark and the number stay, and so does the task."""
        kept = kompakt.compact(written(format), BUDGET, format=format)
        assert kept.tokens_after <= BUDGET and not kompakt.check(kept.payload, format=format)
        given = given_to(kept.payload, format)
        assert {**given, "content": ""} == {**INPUT, "content": ""}
        assert given["content"].startswith("value_0 = 0") and given["content"].endswith("# kept for the report")
        assert "Write the values." in json.dumps(kept.payload)

    def test_recall_brings_it_back(self, format: str) -> None:
        """The reference in the cut names the call, and the call is there whole."""
        kept = kompakt.compact(written(format), BUDGET, format=format)
        found = re.search(r"Original: (\S+)", given_to(kept.payload, format)["content"])
        assert found is not None
        (part,) = kept.recall(found[1], tokens=None).parts
        restored = getattr(part, "input", None)
        assert (json.loads(restored) if isinstance(restored, str) else restored) == INPUT

    def test_again_changes_nothing(self, format: str) -> None:
        """A second pass finds a history that fits."""
        kept = kompakt.compact(written(format), BUDGET, format=format)
        assert kompakt.compact(kept.payload, BUDGET, format=format).payload == kept.payload

    def test_a_pinned_call_is_left_alone(self, format: str) -> None:
        """Pins are byte-equal on every path."""
        with pytest.raises(kompakt.DoesNotFit):
            kompakt.compact(written(format), BUDGET, format=format, pins=[-2])


def _half(payload: Any) -> Any:
    payload[1]["tool_calls"][0]["function"]["arguments"] = TEXT[:-2]
    return payload


class TestKinds:
    def test_a_call_that_waits_is_left_alone(self) -> None:
        """A call without a result is never changed; a call with a result may be."""
        context = Context(CALLED)
        assert not fit(context, BUDGET) and context.shown(1) is CALLED[1]
        context.append(ANSWER)
        assert fit(context, BUDGET) and context.shown(1) is not CALLED[1] and context.messages[1] is CALLED[1]

    def test_the_reported_floor_can_be_met(self) -> None:
        """The least of a call is a note and what is short; the error's floor is true."""
        with pytest.raises(kompakt.DoesNotFit) as caught:
            kompakt.compact(written("anthropic"), 20, format="anthropic")
        floor = caught.value.floor
        assert floor < 400
        assert kompakt.compact(written("anthropic"), floor, format="anthropic").tokens_after <= floor

    def test_free_text_is_cut_as_text(self) -> None:
        """Custom tools are given text, not JSON."""
        item = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": WRITTEN}
        output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}
        payload = [{"role": "user", "content": "Patch it."}, item, output]
        kept = kompakt.compact(payload, BUDGET, format="openai-responses")
        given = kept.payload[1]["input"]
        assert given.startswith("value_0 = 0") and len(given) < len(WRITTEN) / 5
        chat = {"id": "c1", "type": "custom", "custom": {"name": "apply_patch", "input": WRITTEN}}
        messages = [
            {"role": "user", "content": "Patch it."},
            {"role": "assistant", "content": None, "tool_calls": [chat]},
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
        ]
        kept = kompakt.compact(messages, BUDGET, format="openai-chat")
        given = kept.payload[1]["tool_calls"][0]["custom"]["input"]
        assert given.startswith("value_0 = 0") and len(given) < len(WRITTEN) / 5

    def test_what_is_signed_or_acted_on_stays(self) -> None:
        """A signature covers the call; a provider's own shell has its own shape."""
        signed = {"functionCall": {"name": "write_file", "args": INPUT}, "thoughtSignature": "c2ln"}
        contents = [
            {"role": "user", "parts": [{"text": "Write."}]},
            {"role": "model", "parts": [signed]},
            {"role": "user", "parts": [{"functionResponse": {"name": "write_file", "response": {"result": "ok"}}}]},
        ]
        with pytest.raises(kompakt.DoesNotFit):
            kompakt.compact(contents, BUDGET, format="gemini")
        action = {"type": "exec", "command": ["bash", "-c", WRITTEN], "env": {}}
        items = [
            {"role": "user", "content": "Run."},
            {"type": "local_shell_call", "call_id": "c1", "action": action, "status": "completed"},
            {"type": "local_shell_call_output", "call_id": "c1", "output": "ok"},
        ]
        with pytest.raises(kompakt.DoesNotFit):
            kompakt.compact(items, BUDGET, format="openai-responses")
        messages = written("anthropic")
        messages[1]["content"][1]["caller"] = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
        with pytest.raises(kompakt.DoesNotFit):
            kompakt.compact(messages, BUDGET, format="anthropic")

    def test_invalid_json_arguments_stay(self) -> None:
        """Half an object cannot be shortened and still be what it was."""
        with pytest.raises(kompakt.DoesNotFit):
            kompakt.compact(_half(written("openai-chat")), BUDGET, format="openai-chat")

    @pytest.mark.parametrize("policy", ["default", "window"])
    def test_the_answer_gets_its_share(self, policy: str) -> None:
        """A result matters more than the input of its call: it is not removed to keep a large call."""
        answer = "\n".join(f"warning {number}: value {number} is never read" for number in range(2_000))
        payload = kompakt.render([*CALLED, tool(result("c1", answer))], "anthropic")
        kept = kompakt.compact(payload, BUDGET, format="anthropic", policy=policy)
        (shown,) = [part.output for message in kompakt.parse(kept.payload, "anthropic") for part in message.results]
        assert kept.tokens_after <= BUDGET and len(shown) > 1_000

    def test_the_ledger_gets_its_share(self) -> None:
        """A large call at the end does not take the room of what was done before."""
        before = [
            message
            for number in range(40)
            for message in (
                assistant(ToolCall(f"b{number}", "bash", {"command": f"pytest tests/test_part_{number}.py"})),
                tool(result(f"b{number}", f"{number + 3} passed in 0.{number}s\n" + "log line of the run\n" * 60)),
            )
        ]
        end = [assistant("Now.", ToolCall("c1", "write_file", INPUT)), tool(result("c1", "written"))]
        payload = kompakt.render([user("Write the values."), *before, *end], "anthropic")
        kept = kompakt.compact(payload, 3_000, format="anthropic")
        mentioned = [f"tests/test_part_{number}.py" in json.dumps(kept.payload) for number in range(40)]
        assert sum(mentioned) > 30 and kept.tokens_after <= 3_000
