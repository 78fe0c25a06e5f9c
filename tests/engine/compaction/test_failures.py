"""Known failures of other compactors, one test each."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.sessions import LONG, chat, ends_well, outputs, rounds, run, session, texts
from tests.histories import bodies, plain
from tests.histories.messages import assistant, call, result, system, tool, user
from tests.judges import FORMATS, judge
from tests.judges.prefix import judge_rewrite

import kompakt
from kompakt.engine.context.context import Context
from kompakt.engine.pivot.pivot import Material
from kompakt.engine.strategies import Summarization, Truncation
from kompakt.engine.strategies.strategy import over_bytes
from kompakt.model.messages import Media, Message, Reasoning, Text
from kompakt.model.tokens import Counter, Family

KEYS = {"openai-responses": "input", "gemini": "contents"}
POLICIES = ("default", "conservative", "aggressive", "window")


def pairs(payload: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """List the ids of calls and of results in a chat payload."""
    history = kompakt.parse(payload, "openai-chat")
    return [c.id for m in history for c in m.calls], [r.call_id for m in history for r in m.results]


class TestStructure:
    @pytest.mark.parametrize("policy", POLICIES)
    def test_cut_inside_a_turn(self, policy: str) -> None:
        """Every budget cuts between groups: the request is valid at each size of one and the same history."""
        payload = chat(system(), *session(2, 8))
        total = kompakt.count(payload).total
        for budget in range(700, total, total // 12):
            assert judge("openai-chat", kompakt.compact(payload, budget, policy=policy).payload) == []

    def test_adjacency_only_pairing_orphans_late_results(self) -> None:
        """A result that comes after other messages is kept or hidden together with its call."""
        late = [
            user("Task."),
            assistant(call("a"), call("b")),
            tool(result("b", LONG)),
            assistant("Meanwhile.", id="m"),
            tool(result("a", LONG)),
        ]
        context = Context([*late, *rounds(5), user("Newest.")])
        context.exclude(context.group_at(1), reason="test")
        assert [context.group_at(i).excluded for i in (1, 2, 4)] == ["test"] * 3
        assert "c4" in {r.call_id for m in context.project() for r in m.results}

    def test_reused_ids_merge_unrelated_groups(self) -> None:
        """The same id in two rounds names two pairs; one can go without the other."""
        history = [
            user("Task."),
            *[m for _ in range(6) for m in (assistant(call("same")), tool(result("same", LONG)))],
            user("Newest."),
        ]
        context = Context(history)
        assert [len(group) for group in context.groups] == [1, *[2] * 6, 1]
        run(Truncation(target=context.tokens - 10), context)
        assert [group.indices for group in context.groups if group.excluded] == [[1, 2]]
        called, answered = pairs(kompakt.compact(chat(*history), 1500).payload)
        assert called == answered

    def test_second_compaction_drops_the_tail_of_the_first(self) -> None:
        """The second pass keeps messages of the first as far as the budget allows, newest first, without repetition."""
        payload = chat(*session(1, 20))
        first = kompakt.compact(payload, 4000).payload
        second = kompakt.compact([*first, *chat(*rounds(2, start=90))], 4000).payload
        kept = [c for c in pairs(second)[0] if c in pairs(first)[0]]
        assert kept and kept == pairs(first)[0][-len(kept) :]
        assert len(set(pairs(second)[0])) == len(pairs(second)[0])

    @pytest.mark.parametrize("format", FORMATS)
    @given(data=st.data())
    def test_every_message_excluded_or_the_task_missing(self, format: str, data: st.DataObject) -> None:
        """At the floor of any history a real request is left, and never an empty request."""
        body = data.draw(bodies(format))
        try:
            result = kompakt.compact(body, 1, format=format)
        except kompakt.DoesNotFit as error:
            result = kompakt.compact(body, error.floor, format=format)
        history = kompakt.parse(result.payload, format)
        given_history = kompakt.parse(body, format)
        asked = [message for message in given_history if message.role == "user" and not message.results]
        kept = list(texts(result.payload))
        assert len(history) > 0
        assert not asked or all(part.text in kept for part in asked[-1].parts if isinstance(part, Text))

    @pytest.mark.parametrize("format", ["anthropic", "bedrock"])
    def test_thinking_partly_dropped(self, format: str) -> None:
        """Thinking is byte-identical or absent at every budget."""
        body = plain.build(format, messages=50, seed=6, parallel=2)
        total = kompakt.count(body, format=format).total
        for budget in range(total // 5, total + 1, total // 7):
            assert judge_rewrite(body, kompakt.compact(body, budget, format=format).payload, format) == []

    def test_thinking_copied_into_the_summary(self) -> None:
        """Reasoning of the model is in no outline."""
        thought = [
            Message("assistant", (Reasoning("hidden thought", "c2ln"), *m.parts)) if m.role == "assistant" else m
            for m in rounds(20)
        ]
        context = Context([user("Task."), *thought])
        assert run(Summarization(target=3000), context)
        assert context.summary_text is not None and "hidden thought" not in context.summary_text.text

    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize("format", FORMATS)
    def test_context_ends_in_an_assistant_message(self, format: str, policy: str) -> None:
        """After compaction the list ends in user or tool content, as it did before."""
        body = plain.build(format, messages=60, seed=2)
        total = kompakt.count(body, format=format).total
        for share in (2, 4, 6):
            assert ends_well(format, kompakt.compact(body, total // share, format=format, policy=policy).payload)

    def test_one_turn_of_500_calls(self) -> None:
        """One unbroken turn is divided at its rounds."""
        payload = chat(user("Do it all."), *rounds(500, output="some output " * 20))
        kept = kompakt.compact(payload, 6000)
        assert kept.tokens_after <= 6000 and judge("openai-chat", kept.payload) == []
        assert kept.payload[0] == payload[0] and kept.payload[-4:] == payload[-4:]

    def test_parallel_batches_of_50(self) -> None:
        """A batch is kept or hidden as a whole; the open batch is shortened, not split."""
        batches: list[Message] = []
        for batch in range(6):
            ids = [f"b{batch}_{n}" for n in range(50)]
            batches += [assistant(*map(call, ids)), *[tool(result(id, f"{id} " + "word " * 30)) for id in ids]]
        kept = kompakt.compact(chat(user("Task."), *batches), 3500)
        called, answered = pairs(kept.payload)
        assert called == answered and len(called) % 50 == 0 and called[-1] == "b5_49"
        assert judge("openai-chat", kept.payload) == [] and kept.tokens_after <= 3500

    def test_interleaved_results(self) -> None:
        """Results in another order than their calls keep their pairs."""
        made: list[Message] = []
        for n in range(12):
            made += [assistant(call(f"x{n}"), call(f"y{n}")), tool(result(f"y{n}", LONG)), tool(result(f"x{n}", LONG))]
        kept = kompakt.compact(chat(user("Task."), *made), 4500).payload
        called, answered = pairs(kept)
        assert sorted(called) == sorted(answered) and judge("openai-chat", kept) == []

    @pytest.mark.parametrize(
        "history",
        [
            [user(f"{n} " + "word " * 200) for n in range(20)],
            [assistant("word " * 200), *rounds(10)],
            [system("Rule."), user("Task."), *rounds(10)],
            [
                *[system(f"Rule {n}.") for n in range(10)],
                user("Task."),
                *rounds(10),
                system("Later rule."),
                *rounds(2, start=20),
            ],
            [user(""), assistant(""), *rounds(10), user("")],
        ],
        ids=["only users", "assistant first", "a system message", "ten system messages", "empty contents"],
    )
    def test_odd_histories(self, history: list[Message]) -> None:
        """Only users, no user, no or many system messages, no text: a valid history stays valid."""
        payload = chat(*history)
        kept = kompakt.compact(payload, 2500, format="openai-chat")
        assert kept.tokens_after <= 2500 and kept.payload
        faults = judge("openai-chat", payload)
        assert faults or judge("openai-chat", kept.payload) == []
        rules = [item for item in payload if item["role"] == "system"]
        assert [item for item in kept.payload if item["role"] == "system"] == rules
        assert kept.payload[-1].get("tool_call_id") == payload[-1].get("tool_call_id")
        assert kept.payload[-1] == payload[-1] or "recall" in kept.payload[-1]["content"]

    @pytest.mark.parametrize("payload", [[], [{"role": "system", "content": "Rule."}]])
    def test_next_to_nothing(self, payload: list[Any]) -> None:
        """No message, or only empty ones: no change and no error."""
        assert kompakt.compact(payload, 100, format="openai-chat").tokens_after <= 100


class TestBudget:
    def test_one_result_of_400_000_characters_under_10_000_tokens(self) -> None:
        """The oversized result is shortened; system, task and small messages stay."""
        history = [
            system("Rule."),
            user("Task."),
            *rounds(2, output="short"),
            assistant(call("x")),
            tool(result("x", "data 12345 " * 36_400)),
            user("And?"),
        ]
        payload = chat(*history)
        kept = kompakt.compact(payload, 10_000)
        assert kept.tokens_after <= 10_000 and len(outputs(history)[-1]) > 400_000
        assert [item in kept.payload for item in payload] == [True] * 7 + [False, True]
        assert {action.what for action in kept.report.actions} == {"shortened"}
        assert len(kept.payload[7]["content"]) > 1000 and kept.payload[7]["content"].startswith("data 12345")

    @pytest.mark.parametrize("policy", POLICIES)
    def test_an_irreducible_floor_does_not_loop(self, policy: str) -> None:
        """The summarizer is called a limited number of times, then the error names what is too large."""
        payload = chat(system("word " * 3000), user("Task."), *rounds(10))
        with pytest.raises(kompakt.DoesNotFit) as caught:
            kompakt.compact(payload, 2000, policy=policy)
        assert caught.value.largest[0][1] >= 3000 and caught.value.floor < 3600

    def test_chars_by_four_is_off_for_other_scripts(self) -> None:
        """Chinese, emoji and base64 fit by tokens, not by characters."""
        for text in ("请把所有的发票重新导入一次。" * 60, "🙂🚀" * 200, "aGVsbG8gd29ybGQ" * 60):
            kept = kompakt.compact(chat(user("Task."), *rounds(12, output=text)), 3000)
            assert kompakt.count(kept.payload).total == kept.tokens_after <= 3000

    @pytest.mark.parametrize("format", FORMATS)
    def test_tool_schemas_not_counted(self, format: str) -> None:
        """The budget is for the whole request: large tool definitions leave less for messages, or do not fit."""
        body = plain.build(format, messages=40, seed=1)
        total = kompakt.count(body, format=format).total
        holder = body["toolConfig"]["tools"] if format == "bedrock" else body["tools"]
        tools = json.loads(json.dumps(holder).replace("Read a file.", "Read a file. " * 300))
        heavy = {**body, "toolConfig": {"tools": tools}} if format == "bedrock" else {**body, "tools": tools}
        assert kompakt.count(heavy, format=format).total > total + 800
        kept = kompakt.compact(heavy, total, format=format)
        assert kept.changed and kompakt.count(kept.payload, format=format).total <= total
        with pytest.raises(kompakt.DoesNotFit):
            kompakt.compact(heavy, 800, format=format)

    def test_cached_count_survives_an_edit(self) -> None:
        """Another content is another count, in a counter that has seen the first and with stored annotations."""
        counter = Counter()
        first = [user("Task."), *rounds(1)]
        stored = Context(first, counter=counter).annotations()
        edited = [*first[:2], tool(result("c0", LONG * 3))]
        assert Context(edited, counter=counter, annotations=stored).tokens == Context(edited, counter=Counter()).tokens
        assert (
            Context(first, counter=Counter(Family("f", factor=1.5)), annotations=stored).tokens > Context(first).tokens
        )

    def test_bytes_not_tokens(self) -> None:
        """Images have few tokens and many bytes: a trigger by bytes counts them, if they are visible."""
        picture = Media("image", "image/png", "A" * 2_000_000)
        history = [user("Task.")]
        for n in range(6):
            history += [assistant(call(f"s{n}")), tool(kompakt.ToolResult(f"s{n}", "seen", media=(picture,)))]
        context = Context(history)
        strategy = Truncation(when=over_bytes(5_000_000), target=0)
        assert context.bytes > 12_000_000 and run(strategy, context)
        assert context.bytes < 5_000_000 and not run(strategy, context)


class TestCost:
    @pytest.mark.parametrize("format", ["anthropic", "bedrock"])
    def test_cache_breakpoints_over_the_limit(self, format: str) -> None:
        """After rewriting there are never more than four, and none that was not given."""
        body = plain.build(format, messages=60, seed=5)
        places = [1, 21, 41, len(body["messages"]) - 1]
        for index in places:
            content = body["messages"][index]["content"]
            if format == "bedrock":
                content.append({"cachePoint": {"type": "default"}})
            else:
                content[-1]["cache_control"] = {"type": "ephemeral"}
        mark = "cachePoint" if format == "bedrock" else "cache_control"
        total = kompakt.count(body, format=format).total
        for budget in range(total // 6, total, total // 6):
            for policy in POLICIES:
                payload = kompakt.compact(body, budget, format=format, policy=policy).payload
                assert 1 <= json.dumps(payload).count(mark) <= 4 and judge(format, payload) == []

    def test_trigger_and_target_are_one(self) -> None:
        """A summariser is asked rarely: each rewriting makes room for many steps."""
        asked: list[int] = []

        def write(material: Material) -> str:
            asked.append(len(material.messages))
            return "what happened"

        policy = kompakt.Policy("test", (Summarization(write),))
        kompakt.compact(chat(user("Task."), *rounds(300, output="some output " * 30)), 10_000, policy=policy)
        assert 0 < len(asked) <= 15
