"""The contract of all framework adapters: a scripted agent reads pages until its window is full many times over.

Each framework has a test module that runs the loop with the framework's own agent and a scripted model. What the model
receives is recorded as messages of OpenAI Chat and judged here, by rules that are written independently of kompakt.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from tests.integrations.matrix import FRAMEWORKS, MODES

import kompakt
from kompakt.integrations.stores import close_stores
from kompakt.session.timeline import CompactionFailure, PinEvent

STEPS = 30
BUDGET = 4_000
TASK = "Read all pages of the report, one after another. Never skip one. Then say done."
LARGE = 1_000
PIN = "PIN-4711: totals are in thousands"


def page(number: int) -> str:
    """Return the text of one page: about 400 tokens, with one fact. Pages from ``LARGE`` on are long logs."""
    count = 24 if number < LARGE else 400
    rows = "\n".join(f"row {number}-{row}: {row * number % 97} units at {row + number} each" for row in range(count))
    return f"page {number}\nfact-{number}: the depot number is D{number * 7919}\n{rows}"


class TooLong(Exception):
    """A rejection as OpenAI words it."""

    status_code = 400

    def __init__(self, limit: int) -> None:
        message = f"This model's maximum context length is {limit} tokens. Please reduce the length of the messages."
        self.body = {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}
        super().__init__(message)


class TextError(ValueError):
    """A rejection of which only the text tells what it is."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"context_length_exceeded: the prompt is too long, the limit is {limit} tokens")


@dataclass
class Script:
    """What the model does: a call for each page, then an answer. Records every request."""

    steps: int = STEPS
    reject: frozenset[int] = frozenset()
    """Numbers of the requests, from 0, that are rejected as too long."""
    error: type[Exception] = TooLong
    first: int = 0
    """Added to the numbers of pages."""
    recall_at: int | None = None
    """Number of the step at which the model calls recall instead of reading on."""
    query: str = "depot number of fact-2"
    """What it looks for."""
    beat: Barrier | None = None
    """Where the model waits for the models of other conversations, before each answer."""
    requests: list[list[dict[str, Any]]] = field(default_factory=list)
    tools: list[set[str]] = field(default_factory=list)
    _step: int = 0

    def answer(self, messages: Sequence[dict[str, Any]], tools: set[str]) -> dict[str, Any]:
        """Record a request and return the answer: ``{"call": (id, name, arguments)}`` or ``{"text": …}``."""
        if self.beat is not None:
            with contextlib.suppress(BrokenBarrierError):
                self.beat.wait(20)
        number = len(self.requests)
        self.requests.append(list(messages))
        self.tools.append(tools)
        if number in self.reject:
            raise self.error(BUDGET)
        self._step += 1
        if self._step == self.recall_at:
            assert "recall" in tools, "the model was not offered recall"
            return {"call": (f"call-r{self._step}", "recall", {"query": self.query})}
        if self._step > self.steps:
            return {"text": "done"}
        return {"call": (f"call-{self._step}", "read_page", {"number": self.first + self._step})}


@dataclass
class Run:
    """What a loop left."""

    script: Script
    text: str = ""
    """The final answer."""
    stored: list[str] | None = None
    """Texts of all messages that the framework itself keeps; ``None`` if the adapter rewrites them."""
    same_objects: bool | None = None
    """Whether every unchanged message of the last view was the framework's own object."""
    reports: list[Any] = field(default_factory=list)


def judge(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Return why OpenAI would reject these messages."""
    problems: list[str] = []
    open_calls: list[str] = []
    seen: set[str] = set()
    spoken = [one for one in messages if one["role"] not in ("system", "developer")]
    if not spoken or spoken[0]["role"] != "user":
        problems.append("the first message is not a user message")
    for at, one in enumerate(messages):
        role = one["role"]
        if role == "tool":
            if one.get("tool_call_id") not in open_calls:
                problems.append(f"{at}: result of {one.get('tool_call_id')} without its call")
            else:
                open_calls.remove(one["tool_call_id"])
            continue
        if open_calls:
            problems.append(f"{at}: {role} message before the results of {open_calls}")
            open_calls = []
        for call in one.get("tool_calls") or ():
            if call["id"] in seen:
                problems.append(f"{at}: call {call['id']} twice")
            seen.add(call["id"])
            open_calls.append(call["id"])
        if not one.get("content") and not one.get("tool_calls"):
            problems.append(f"{at}: empty {role} message")
    if open_calls:
        problems.append(f"calls without results at the end: {open_calls}")
    return problems


def texts(messages: Sequence[dict[str, Any]]) -> str:
    """Return everything the model reads, in one text."""
    return "\n".join(str(one.get("content") or "") for one in messages)


def stored(url: str) -> str:
    """Close the stores of the adapters and return everything in one store."""
    close_stores()

    async def read() -> str:
        store = await kompakt.open_store(url)
        found = [str(await session.export()) async for session in store.sessions()]
        await store.close()
        return "\n".join(found)

    return asyncio.run(read())


def recorded(url: str) -> list[tuple[int, int]]:
    """Close the stores of the adapters and return the sizes before and after each compaction in one store."""
    close_stores()

    async def read() -> list[tuple[int, int]]:
        store = await kompakt.open_store(url)
        found = [one async for session in store.sessions() for one in await session.compactions()]
        await store.close()
        return [(one.tokens_before, one.tokens_after) for one in sorted(found, key=lambda one: one.at)]

    return asyncio.run(read())


def events(url: str) -> list[Any]:
    """Close the stores of the adapters and return what happened in all sessions of one store."""
    close_stores()

    async def read() -> list[Any]:
        store = await kompakt.open_store(url)
        timelines = [(await session.reader()).timeline async for session in store.sessions()]
        await store.close()
        return [one.event for timeline in timelines for one in timeline.events]

    return asyncio.run(read())


def sessions(url: str) -> list[str]:
    """Close the stores of the adapters and return the names of the sessions in one store."""
    close_stores()

    async def read() -> list[str]:
        store = await kompakt.open_store(url)
        found = [session.id async for session in store.sessions()]
        await store.close()
        return found

    return asyncio.run(read())


def run_page(name: str, **names: Any) -> dict[str, Any]:
    """Run the Python blocks of a framework's page in docs/integrations with these names defined; return all names."""
    return run_blocks(f"docs/integrations/{name}.md", "python", **names)


def run_blocks(page: str, language: str, *, section: str = "", **names: Any) -> dict[str, Any]:
    """Run the blocks of a page, or of one section, in one language with these names defined; return all names.

    In pages that are not about one framework, blocks that need a framework are marked ``py`` instead of ``python``.
    """
    text = (Path(__file__).parents[2] / page).read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    assert found
    space = dict(names)
    for block in found:
        exec(compile(block, page, "exec"), space)
    return space


class FakeOpenAI:
    """The chat completions of OpenAI, answered by a script, for clients that take an HTTP transport."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def answer(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return the status and body of a response."""
        given = json.loads(body)
        try:
            made = self.script.answer(given["messages"], {one["function"]["name"] for one in given.get("tools", ())})
        except TooLong as error:
            return 400, {"error": error.body}
        message: dict[str, Any] = {"role": "assistant", "content": made.get("text")}
        if "call" in made:
            id, name, arguments = made["call"]
            function = {"name": name, "arguments": json.dumps(arguments)}
            message["tool_calls"] = [{"id": id, "type": "function", "function": function}]
        reason = "tool_calls" if "call" in made else "stop"
        choice = {"index": 0, "finish_reason": reason, "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return 200, {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }


@dataclass
class ObjectCheck:
    """Compares, at every request, the messages that a framework gave to the adapter with those that its model got."""

    given: list[Any] = field(default_factory=list)
    same: bool | None = None

    def give(self, messages: Sequence[Any]) -> None:
        """Note what the framework gave."""
        self.given = list(messages)

    def show(self, messages: Sequence[Any]) -> None:
        """Compare what the model got: a message that is equal to a given one has to be that one.

        The question before a summary is the same in every compaction; kompakt writes it each time.
        """
        own, known = set(map(id, self.given)), {repr(one) for one in self.given if "[kompakt]" not in repr(one)}
        kept = [one for one in messages if repr(one) in known]
        self.same = self.same is not False and bool(kept) and all(id(one) in own for one in kept)


TESTS = {
    "threads": ("test_two_conversations_in_two_threads_do_not_mix",),
    "shared": ("test_conversations_that_share_an_adapter_do_not_mix",),
    "kept": ("test_the_framework_keeps_every_message", "test_the_framework_keeps_results_that_were_shortened"),
    "objects": ("test_unchanged_messages_are_the_same_objects",),
    "retry": (
        "test_a_rejected_request_is_shortened_and_sent_once_more",
        "test_a_rejection_is_recognized_by_its_text",
        "test_a_request_that_stays_too_long_is_a_typed_error",
    ),
    "unfit": ("test_what_does_not_fit_is_an_error",),
    "recall": ("test_recall_finds_what_left_the_context",),
    "admission": (
        "test_large_results_are_shortened_before_the_model_sees_them",
        "test_the_framework_keeps_results_that_were_shortened",
        "test_the_store_has_results_that_were_shortened",
    ),
}
"""Tests of the parts that some frameworks do not allow; see ``matrix``."""


class AdapterContract:
    """Subclass it for a framework of ``matrix`` and implement ``run_loop`` and ``make_adapter``."""

    modes: tuple[str, ...]
    without: Mapping[str, str]

    def __init_subclass__(cls, framework: str) -> None:
        """Leave out the tests of what the framework does not allow, so that no test passes without a check."""
        without = cls.without = FRAMEWORKS[framework].without
        cls.modes = tuple(mode for mode in MODES if mode not in without)
        for check, names in TESTS.items():
            for name in names if check in without else ():
                assert name not in vars(cls), f"{name} is left out in matrix.py"
                setattr(cls, name, None)

    def make_adapter(self, **options: Any) -> Any:
        """Return an adapter for ``run_loop``, if agents and conversations can share one."""
        raise NotImplementedError

    def run_loop(
        self, script: Script, *, mode: str = "sync", thread: str = "one", adapter: Any = None, **options: Any
    ) -> Run:
        """Run the framework's agent on ``TASK`` with this adapter, or with one that has these options."""
        raise NotImplementedError

    def test_every_request_is_valid_and_within_budget(self) -> None:
        run = self.run_loop(Script(), mode=self.modes[0], budget=BUDGET)
        assert [judge(request) for request in run.script.requests] == [[] for _ in run.script.requests]
        sizes = [kompakt.count(request, format="openai-chat").total for request in run.script.requests]
        assert max(sizes) <= BUDGET
        assert len(run.script.requests) == STEPS + 1
        assert run.text == "done"

    def test_the_history_would_not_have_fitted(self) -> None:
        run = self.run_loop(Script(), mode=self.modes[0], budget=1_000_000)
        assert kompakt.count(run.script.requests[-1], format="openai-chat").total > 2 * BUDGET

    def test_first_request_newest_result_and_pins_are_verbatim(self) -> None:
        run = self.run_loop(Script(), mode=self.modes[0], budget=BUDGET, pins=[PIN])
        for number, request in enumerate(run.script.requests):
            assert TASK in texts(request)
            assert not number or page(number) in texts(request)
        assert PIN in texts(run.script.requests[-1])

    def test_all_modes_send_the_same(self) -> None:
        sent = [self.run_loop(Script(), mode=mode, budget=BUDGET).script.requests for mode in self.modes]
        assert all([texts(one) for one in run] == [texts(one) for one in sent[0]] for run in sent)

    def test_requests_extend_the_ones_before_between_compactions(self) -> None:
        run = self.run_loop(Script(), mode=self.modes[0], budget=BUDGET)
        requests = run.script.requests
        extends = [after[: len(before)] == before for before, after in itertools.pairwise(requests)]
        assert sum(extends) >= len(extends) - 8

    def test_two_conversations_in_two_threads_do_not_mix(self) -> None:
        with ThreadPoolExecutor(2) as threads:
            both = list(
                threads.map(
                    lambda name: self.run_loop(Script(), mode=self.modes[0], thread=name, budget=BUDGET), ("a", "b")
                )
            )
        alone = self.run_loop(Script(), mode=self.modes[0], thread="c", budget=BUDGET)
        for run in both:
            assert [texts(one) for one in run.script.requests] == [texts(one) for one in alone.script.requests]

    def test_conversations_that_share_an_adapter_do_not_mix(self) -> None:
        """Two conversations start with the same words and take turns. Each gets what it would get alone."""
        recall_at, beat = None if "recall" in self.without else 25, Barrier(2)
        starts = {"a": 0, "b": 200}

        def script(thread: str, beat: Barrier | None) -> Script:
            first = starts[thread]
            return Script(first=first, recall_at=recall_at, query=f"depot number of fact-{first + 2}", beat=beat)

        def run(thread: str, adapter: Any, beat: Barrier | None = None) -> list[str]:
            one = script(thread, beat)
            self.run_loop(one, mode=self.modes[0], thread=thread, adapter=adapter, budget=BUDGET)
            return [texts(request) for request in one.requests]

        adapter = self.make_adapter(budget=BUDGET)
        with ThreadPoolExecutor(2) as threads:
            both = list(threads.map(lambda thread: run(thread, adapter, beat), starts))
        assert both == [run(thread, self.make_adapter(budget=BUDGET)) for thread in starts]
        assert f"D{202 * 7919}" not in "".join(both[0])
        assert recall_at is None or f"D{202 * 7919}" in both[1][25]

    def test_a_rejected_request_is_shortened_and_sent_once_more(self) -> None:
        run = self.run_loop(Script(reject=frozenset({12})), mode=self.modes[0], budget=BUDGET)
        sizes = [kompakt.count(request, format="openai-chat").total for request in run.script.requests]
        assert sizes[13] < sizes[12]
        assert judge(run.script.requests[13]) == []
        assert run.text == "done"

    def test_a_rejection_is_recognized_by_its_text(self) -> None:
        """Not every client has an error of its own for it."""
        run = self.run_loop(Script(reject=frozenset({12}), error=TextError), mode=self.modes[0], budget=BUDGET)
        sizes = [kompakt.count(request, format="openai-chat").total for request in run.script.requests]
        assert sizes[13] < sizes[12]
        assert run.text == "done"

    def test_a_request_that_stays_too_long_is_a_typed_error(self) -> None:
        with pytest.raises(kompakt.Overflowed) as caught:
            self.run_loop(Script(reject=frozenset({12, 13, 14})), mode=self.modes[0], budget=BUDGET)
        assert isinstance(caught.value.__cause__, BaseException)

    def test_the_framework_keeps_every_message(self) -> None:
        run = self.run_loop(Script(), mode=self.modes[0], budget=BUDGET)
        assert run.stored is not None
        assert [number for number in range(1, STEPS + 1) if page(number) not in run.stored] == []

    def test_unchanged_messages_are_the_same_objects(self) -> None:
        assert self.run_loop(Script(), mode=self.modes[0], budget=BUDGET).same_objects is True

    def test_recall_finds_what_left_the_context(self) -> None:
        run = self.run_loop(Script(recall_at=25), mode=self.modes[0], budget=BUDGET)
        assert "D15838" in texts(run.script.requests[25])
        assert "recall" not in run.script.tools[0]

    def test_without_recall_nothing_mentions_it(self) -> None:
        run = self.run_loop(Script(), mode=self.modes[0], budget=BUDGET, recall=False)
        assert all("recall" not in names for names in run.script.tools)
        assert all("recall" not in texts(request).lower() for request in run.script.requests)

    def test_each_compaction_is_reported(self) -> None:
        reports: list[Any] = []
        self.run_loop(Script(), mode=self.modes[0], budget=BUDGET, on_compaction=reports.append)
        assert reports
        assert all(report.tokens_after < report.tokens_before for report in reports)

    def test_large_results_are_shortened_before_the_model_sees_them(self) -> None:
        script = Script(steps=2, first=LARGE)
        requests = self.run_loop(script, mode=self.modes[0], budget=100_000, admission="firm").script.requests
        assert [judge(request) for request in requests] == [[] for _ in requests]
        sizes = [kompakt.count(request, format="openai-chat").total for request in requests]
        assert max(sizes) < kompakt.count([{"role": "user", "content": page(LARGE + 1)}], format="openai-chat").total
        assert "fact-1001: the depot number is D" in texts(requests[-1])
        assert "lines folded" in texts(requests[1])
        assert all(texts(after).startswith(texts(before)) for before, after in itertools.pairwise(requests))

    def test_results_are_not_shortened_below_the_budget_by_default(self) -> None:
        run = self.run_loop(Script(steps=2, first=LARGE), mode=self.modes[0], budget=100_000)
        assert page(LARGE + 2) in texts(run.script.requests[-1])

    def test_the_framework_keeps_results_that_were_shortened(self) -> None:
        run = self.run_loop(Script(steps=2, first=LARGE), mode=self.modes[0], budget=100_000, admission="firm")
        assert run.stored is not None
        assert page(LARGE + 1) in run.stored

    def test_the_store_has_results_that_were_shortened(self, tmp_path: Any) -> None:
        url = f"sqlite:///{tmp_path / 'agent.db'}"
        script = Script(steps=2, first=LARGE)
        self.run_loop(script, mode=self.modes[0], budget=100_000, admission="firm", store=url)
        assert "row 1002-399: " in stored(url)

    def test_the_store_records_each_compaction(self, tmp_path: Any) -> None:
        url, reports = f"sqlite:///{tmp_path / 'agent.db'}", list[Any]()
        self.run_loop(Script(), mode=self.modes[0], budget=BUDGET, store=url, on_compaction=reports.append)
        assert recorded(url) == [(one.tokens_before, one.tokens_after) for one in reports] != []

    def test_the_store_has_the_pins(self, tmp_path: Any) -> None:
        url = f"sqlite:///{tmp_path / 'agent.db'}"
        self.run_loop(Script(), mode=self.modes[0], budget=BUDGET, pins=[PIN], store=url)
        assert [one.text for one in events(url) if isinstance(one, PinEvent)] == [PIN]

    def test_the_store_records_what_does_not_fit(self, tmp_path: Any) -> None:
        url = f"sqlite:///{tmp_path / 'agent.db'}"
        with contextlib.suppress(
            Exception
        ):  # each framework has its own way to report it; Haystack tries a larger size
            self.run_loop(Script(), mode=self.modes[0], budget=BUDGET, pins=[page(LARGE)], store=url)
        failures = [one.reason for one in events(url) if isinstance(one, CompactionFailure)]
        assert failures and all("pinned texts" in one for one in failures)

    def test_what_does_not_fit_is_an_error(self) -> None:
        """It must reach the caller: some frameworks ignore errors of callbacks and send the whole messages."""
        script = Script()
        with pytest.raises(Exception) as caught:  # frameworks wrap it in errors of their own
            self.run_loop(script, mode=self.modes[0], budget=BUDGET, pins=[page(LARGE)])
        chain: list[BaseException | None] = [caught.value]
        while (last := chain[-1]) is not None:
            chain.append(last.__cause__ or last.__context__)
        assert any(isinstance(one, kompakt.DoesNotFit) for one in chain), repr(caught.value)
        assert all(kompakt.count(one, format="openai-chat").total <= BUDGET for one in script.requests)

    def test_the_store_has_the_whole_conversation(self, tmp_path: Any) -> None:
        url = f"sqlite:///{tmp_path / 'agent.db'}"
        self.run_loop(Script(), mode=self.modes[0], budget=BUDGET, store=url)
        kept = stored(url)
        assert [number for number in range(1, STEPS - 8) if f"D{number * 7919}" not in kept] == []
