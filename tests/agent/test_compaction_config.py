"""Compaction settings of an agent: pruning, the resume message, and the hook before a compaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.agent.scripted_client import Scripted, calls
from tests.session.builders import turns

import kompakt
from kompakt.agent.agent import Agent
from kompakt.agent.config import CompactionConfig, policy_of
from kompakt.engine.pivot.pivot import Material
from kompakt.model.groups import is_request
from kompakt.model.messages import Message, Text
from kompakt.model.phrases import PIVOT_QUESTION, RESUME_PROMPT, is_pivot_question, pivot_question, resume_note, unseal
from kompakt.session.store import open_store
from kompakt.strategies import OutputPruning, Shortening, Summarization, Truncation

STEPS = 12
OWN_WORDS = "Continue with the next item of your plan."


def read_page(page: int = 0) -> str:
    """Read a page."""
    return f"page {page}: " + "some words of the page " * 60


def names(config: CompactionConfig) -> list[str]:
    return [type(step).__name__ for step in policy_of(config).steps]


def run_agent(*, format: str = "openai-chat", tools: Any = (read_page,), **config: Any) -> Scripted:
    """Run an agent that has to compact, and return its client."""
    answers = [calls("read_page", id=f"c{n}x", page=n) for n in range(STEPS)]
    client = Scripted(*answers, "Done.", format=format)

    async def run() -> None:
        given: dict[str, Any] = {"budget": 3_000, "economic": False, **config}
        async with Agent(client, tools=tools, compaction=CompactionConfig(**given)) as agent:
            await agent.run("Read the pages.", session="s")
            assert await (await agent.session("s")).compactions()

    asyncio.run(run())
    return client


def texts(client: Scripted) -> list[str]:
    return [message.text for at in range(len(client.bodies)) for message in client.shown(at)]


class TestPruning:
    def test_the_default_policy_prunes_outputs_before_it_summarizes(self) -> None:
        assert names(CompactionConfig()) == ["Shortening", "SourceAttribution", "OutputPruning", "Summarization"]
        assert names(CompactionConfig(policy="default")) == names(CompactionConfig())

    def test_prune_false_drops_the_step_from_any_policy(self) -> None:
        assert names(CompactionConfig(prune=False)) == ["Shortening", "SourceAttribution", "Summarization"]
        assert "OutputPruning" not in names(CompactionConfig(prune=False, policy="conservative"))

    def test_another_policy_changes_only_on_request(self) -> None:
        own = kompakt.Policy("own", (Shortening(), Truncation()))
        assert policy_of(CompactionConfig(policy=own)) is own
        assert names(CompactionConfig(policy=own, prune=True)) == ["Shortening", "OutputPruning", "Truncation"]
        assert names(CompactionConfig(policy="window")) == ["Shortening", "Truncation"]

    def test_a_policy_with_its_own_pruning_is_kept(self) -> None:
        own = kompakt.Policy("own", (OutputPruning(keep_tokens=1), Summarization()))
        assert policy_of(CompactionConfig(policy=own, prune=True)) is own

    @pytest.mark.parametrize("prune", [None, False])
    def test_a_run_hides_old_outputs_before_it_drops_messages(self, prune: bool | None) -> None:
        def read_file(number: int = 0) -> str:
            """Read a file."""
            return f"file {number}: " + "one two three four five six seven eight nine ten " * 400

        answers = [calls("read_file", id=f"c{n}x", number=n) for n in range(29)]
        client = Scripted(*answers, "Read.", "Fine.", "Done.", window=200_000)

        async def run() -> None:
            config = CompactionConfig(prune=prune, budget=118_000, economic=False)
            async with Agent(client, tools=[read_file], compaction=config) as agent:
                for text in ("Read the files.", "Good.", "Compare them. " + "Note this. " * 1_000):
                    await agent.run(text, session="s")

        asyncio.run(run())
        placeholders = [
            result.output for one in client.shown() for result in one.results if "left out. Original:" in result.output
        ]
        if prune is False:
            assert placeholders == []
        else:
            assert len(placeholders) == 20, "the newest 40,000 tokens of output stay"
            assert len([call for one in client.shown() for call in one.calls]) == 29, "no message is dropped"
            assert RESUME_PROMPT not in texts(client), "nothing was summarized"


class TestResumeMessage:
    def test_the_default_text_asks_to_continue(self) -> None:
        assert RESUME_PROMPT in texts(run_agent())

    @pytest.mark.parametrize("format", ["openai-chat", "anthropic", "gemini"])
    def test_own_words_replace_the_text_and_are_no_request(self, format: str) -> None:
        """They stay recognizable as a message of the program after the history was sent and parsed again."""
        client = run_agent(format=format, resume=OWN_WORDS)
        own = [message for at in range(len(client.bodies)) for message in client.shown(at) if OWN_WORDS in message.text]
        found = texts(client)
        assert RESUME_PROMPT not in found
        if format == "openai-chat":
            assert own and not any(is_request(message) for message in own)
            assert {message.text for message in own} == {resume_note(OWN_WORDS)}

    def test_it_can_be_switched_off(self) -> None:
        found = texts(run_agent(resume=False))
        assert RESUME_PROMPT not in found and not any("Earlier steps were summarized" in text for text in found)

    @pytest.mark.parametrize(("resume", "rows"), [(True, 1), ("Go ahead.", 1), (False, 0), ("  ", 0)])
    def test_a_session_accepts_the_same_option(self, resume: bool | str, rows: int) -> None:
        async def run() -> None:
            async with await open_store("memory:") as store:
                session = await store.session("s")
                for n in range(6):
                    await session.append([{"role": "user", "content": f"{n} " + "word " * 400}], format="openai-chat")
                    await session.append([{"role": "assistant", "content": "Noted."}], format="openai-chat")
                assert (await session.compact(1_500, resume=resume)).changed
                last = (await session.project()).history.messages[-1]
                assert (last.source_id == "kompakt.resume") == bool(rows)

        asyncio.run(run())


class TestQuestion:
    QUESTION = "Was wurde bisher erledigt?"

    @pytest.mark.parametrize("format", ["openai-chat", "anthropic", "gemini"])
    def test_own_words_replace_the_question_and_are_no_request(self, format: str) -> None:
        """The question stays recognizable as a line of the program after the history was sent and parsed again."""
        client = run_agent(format=format, question=self.QUESTION)
        last = list(client.shown(len(client.bodies) - 1))
        asked = [part.text for one in last for part in one.parts if type(part) is Text and self.QUESTION in part.text]
        assert asked == [pivot_question(self.QUESTION)]
        assert not any(PIVOT_QUESTION in text for text in texts(client))
        alone = [message for message in last if message.text == asked[0]]
        assert not any(is_request(message) for message in alone)

    @pytest.mark.parametrize("format", ["openai-chat", "anthropic", "gemini"])
    def test_a_later_pass_recognizes_a_summary_by_its_seal(self, format: str) -> None:
        """For any question: its summary is merged into the next one, and one question remains."""
        client = run_agent(format=format, question=self.QUESTION)
        shown = list(client.shown(len(client.bodies) - 1))
        [summary] = [body for message in shown if (body := unseal(message.text)) and message.role == "assistant"]
        more = [Message(role, (Text(f"{n}: " + "word " * 300),)) for n in range(12) for role in ("user", "assistant")]
        payload = kompakt.render([*shown, *more], format)
        result = kompakt.compact(payload, 4_000, format=format)
        parts = [part for one in kompakt.parse(result.payload, format) for part in one.parts if type(part) is Text]
        assert [part.text for part in parts if is_pivot_question(part.text)] == [PIVOT_QUESTION]
        [folded] = [body for part in parts if (body := unseal(part.text))]
        bullets = [line for line in summary.split("\n") if line.startswith("- ")]
        assert any(bullet in folded for bullet in bullets)

    def test_a_summary_keeps_its_question_until_the_next_compaction(self) -> None:
        """Without a question a compaction repeats the latest; an empty one restores the usual words."""

        async def run() -> None:
            async with await open_store("memory:") as store:
                session = await store.session("s")

                async def questions() -> list[str]:
                    history = (await session.project()).history
                    assert kompakt.count(history).total == await session.count()
                    return [message.text for message in history if is_pivot_question(message.text)]

                own, shown = self.QUESTION, list[str]()
                for given, expected in ((own, own), (None, own), ("And?", "And?"), ("", "")):
                    await session.append(turns(8), format="openai-chat")
                    assert await questions() == shown
                    assert (await session.compact(1_500, question=given, reason="asked for")).changed
                    shown = [pivot_question(expected)]
                    assert await questions() == shown

        asyncio.run(run())

    def test_a_question_must_have_its_seal(self) -> None:
        """A text that only looks like one stays a request of the user."""
        forged = pivot_question(self.QUESTION).replace("bisher", "heute")
        assert not is_pivot_question(forged) and is_request(Message("user", (Text(forged),)))


class TestHook:
    @staticmethod
    def instructions(hook: Callable[[str], Any]) -> list[str | None]:
        """Return the instructions that a summarizer gets in a run with this hook."""
        seen: list[str | None] = []

        def summarizer(material: Material) -> str:
            seen.append(material.instructions)
            return "The agent read some pages."

        run_agent(summarizer=summarizer, instructions="Keep the page numbers.", before_compaction=hook)
        assert seen
        return seen

    def test_its_lines_follow_the_instructions(self) -> None:
        found = self.instructions(lambda session: [f"session {session}", "branch main"])
        assert set(found) == {"Keep the page numbers.\nsession s\nbranch main"}

    def test_it_may_be_asynchronous_and_return_one_text(self) -> None:
        async def hook(session: str) -> str:
            await asyncio.sleep(0)
            return f"session {session}"

        assert set(self.instructions(hook)) == {"Keep the page numbers.\nsession s"}

    def test_it_may_return_nothing(self) -> None:
        assert set(self.instructions(lambda session: None)) == {"Keep the page numbers."}

    def test_an_error_is_logged_and_ends_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        def hook(session: str) -> str:
            raise RuntimeError("no branch")

        assert set(self.instructions(hook)) == {"Keep the page numbers."}
        assert "before_compaction failed: RuntimeError('no branch')" in caplog.text

    def test_a_requested_compaction_calls_it_too(self) -> None:
        seen: list[str | None] = []

        async def run() -> None:
            config = CompactionConfig(before_compaction=lambda session: f"session {session}", auto=False)
            async with Agent(Scripted("Done."), compaction=config) as agent:
                await agent.run("Read this: " + "word " * 2_000, session="s")
                await agent.run("And this: " + "word " * 2_000, session="s")
                await agent.compact(
                    "s",
                    budget=3_000,
                    instructions="By hand.",
                    summarizer=lambda material: seen.append(material.instructions) or "Two texts.",
                )

        asyncio.run(run())
        assert seen == ["By hand.\nsession s"]
