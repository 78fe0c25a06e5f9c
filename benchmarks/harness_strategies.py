"""The strategy tests of pydantic-ai-harness, run on its own strategies and on kompakt's capability.

    python -m benchmarks.harness_strategies PATH

PATH is a copy of the file ``tests/compaction/test_compaction.py`` in the source distribution of pydantic-ai-harness
0.10.0, in a folder of its own, without the ``conftest.py`` beside it. It is not in this repository; it is run as it is.
Next to kompakt, the environment needs ``pydantic-ai-harness==0.10.0``, ``pytest``, ``anyio`` and ``logfire``.

First the tests run on the strategies that they were written for. Then the names of the strategies in the module stand
for kompakt's ``Kompakt`` capability: whenever a test gives messages to a strategy, kompakt compacts them instead. Tests
that give no messages to a strategy (constructor arguments, helper functions) say nothing about kompakt and are counted
apart. A test that fails on kompakt has to be explained in ``DESIGN``, or it is a failure.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.models.test import TestModel

from kompakt.integrations.pydantic_ai import Kompakt
from kompakt.model.budget import Budget

RESULT = Path(__file__).parent / "results" / "harness_strategies.json"

STRATEGIES = (
    "ClampOversizedMessages",
    "ClearToolResults",
    "DeduplicateFileReads",
    "SlidingWindow",
    "SummarizingCompaction",
    "TieredCompaction",
)

LARGE = 1_000_000
"""Tokens of a budget that is never due."""

DESIGN = {
    "the first request and the newest step stay whole if they fit": (
        "TestClampOversizedMessages::test_before_model_request",
        "TestClampOversizedMessages::test_clamps_oversized_response_text",
        "TestClampOversizedMessages::test_clamps_oversized_tool_call_args",
        "TestClampOversizedMessages::test_keep_tail_zero",
        "TestClampOversizedMessages::test_preserves_typed_tool_call_subclasses",
        "TestClampOversizedMessages::test_request_messages_and_other_parts_untouched",
        "TestClampOversizedMessages::test_token_trigger_uses_heuristic",
        "TestClampOversizedMessages::test_token_trigger_uses_tokenizer",
        "TestClearToolResults::test_clear_tool_inputs",
        "TestClearToolResults::test_idempotent",
        "TestClearToolResults::test_min_clear_tokens_proceeds_on_large_gain",
        "TestClearToolResults::test_token_trigger",
        "TestCompaction::test_compaction_replaces_old_messages",
        "TestPreserveFirstUserMessage::test_sliding_window_disabled_preserve",
        "TestSlidingWindow::test_keep_tokens_mode",
    ),
    "old steps leave as a whole and notes replace them; there is no placeholder for a cleared result": (
        "TestClearToolResults::test_clears_old_keeps_recent_pairs",
        "TestClearToolResults::test_exclude_tools",
        "TestClearToolResults::test_preserves_typed_tool_search_return",
        "TestDeduplicateFileReads::test_trigger_gate_exceeded",
    ),
    "compactions are reported to `on_compaction`, not as spans of Pydantic AI": (
        "TestCompactionSpan::test_clamp_emits_span_for_oversized_tool_call_args",
        "TestCompactionSpan::test_clamp_emits_span_only_when_a_part_is_clamped",
        "TestCompactionSpan::test_clear_tool_results_emits_span",
        "TestCompactionSpan::test_span_emitted_when_dedup_changes_history",
        "TestCompactionSpan::test_span_emitted_when_threshold_exceeded",
        "TestCompactionSpan::test_summarizing_compaction_emits_span",
        "TestCompactionSpan::test_tiered_emits_single_span_not_one_per_tier",
    ),
    "nothing changes below the budget": (
        "TestDeduplicateFileReads::test_keeps_latest_read",
        "TestDeduplicateFileReads::test_runs_always_without_trigger",
    ),
    "notes are written by code unless the policy has a summarizer; the test reads what a model was asked or wrote": (
        "TestIncrementalSummarization::test_incremental_disabled",
        "TestIncrementalSummarization::test_incremental_includes_previous_summary",
        "TestIncrementalSummarization::test_incremental_no_previous_summary",
        "TestIncrementalSummarization::test_incremental_output_contains_summary",
        "TestPreserveFirstUserMessage::test_compaction_preserves_first_user",
        "TestSummarizingCompactionModel::test_model_inherits_from_ctx_when_none",
        "TestSummarizingCompactionPreserveBranches::test_preserve_with_no_user_messages",
    ),
    "a request starts with a user message; kompakt adds one if the history has none there": (
        "TestPreserveFirstUserMessage::test_sliding_window_no_user_messages",
        "TestSummarizingCompactionPreserveBranches::test_preserve_when_first_user_already_in_tail",
    ),
    "steps belong to a policy; the test counts the calls of its own tiers": (
        "TestTieredCompaction::test_composes_real_strategies",
        "TestTieredCompaction::test_full_escalation",
        "TestTieredCompaction::test_short_circuit_first_tier_suffices",
    ),
    "tokens are those of the model; there is no option for another count": (
        "TestTokenizerParameter::test_compaction_with_tokenizer",
        "TestTokenizerParameter::test_sliding_window_tokenizer_threshold_check",
        "TestTokenizerParameter::test_sliding_window_with_tokenizer",
    ),
}
"""Why kompakt does something else, with the tests that expect another behaviour."""


class Substitute(AbstractCapability[Any]):
    """Kompakt in place of a strategy: a compaction is due when that of the strategy is."""

    runs = 0
    """How often any of them was given messages."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        """Compact a request."""
        Substitute.runs += 1
        made = Kompakt(budget=self._budget(request_context.messages), recall=False)
        run: Any = SimpleNamespace(conversation_id="c", run_id="r", usage=ctx.usage)
        done = await made.before_model_request(run, replace(request_context, model=TestModel()))
        return replace(request_context, messages=done.messages)

    async def compact(self, messages: list[Any], ctx: Any) -> list[Any]:
        """Compact messages."""
        request = ModelRequestContext(
            model=TestModel(),
            messages=messages,
            model_settings=None,
            model_request_parameters=ModelRequestParameters(),
        )
        return (await self.before_model_request(ctx, request)).messages

    def _budget(self, messages: Sequence[Any]) -> Budget:
        """Return a budget that is due if the limits of the strategy are exceeded and not all messages are to be kept.

        The histories of the tests have a few words, so no budget in tokens makes sense for them: what is due is
        compacted as far as possible.
        """
        given = self._options
        sizes = [
            len(str(getattr(part, "content", "") or getattr(part, "args", "")))
            for one in messages
            for part in one.parts
        ]
        limits = {
            "max_messages": len(messages),
            "max_tokens": sum(sizes) // 4,
            "target_tokens": sum(sizes) // 4,
            "max_part_chars": max(sizes, default=0),
            "max_part_tokens": max(sizes, default=0) // 4,
        }
        exceeded = any(size > given[name] for name, size in limits.items() if given.get(name) is not None)
        if not exceeded or given.get("keep_messages", 0) >= len(messages):
            return Budget.of(LARGE)
        return Budget(window=LARGE, trigger=2, target=1)


class Substitution:
    """A plugin of pytest that replaces the strategies and notes what became of each test."""

    def __init__(self, *, replaces: bool) -> None:
        self.replaces = replaces
        self.outcomes: dict[str, bool] = {}
        self.reached: set[str] = set()
        self.errors: dict[str, str] = {}

    @pytest.hookimpl
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Run each test in one event loop only; replace the strategies in its module."""
        items[:] = [item for item in items if "[trio]" not in item.nodeid]
        for module in {item.module for item in items if isinstance(item, pytest.Function)} if self.replaces else ():
            for name in STRATEGIES:
                setattr(module, name, type(name, (Substitute,), {}))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        """Note whether a test gave messages to a strategy."""
        before = Substitute.runs
        yield
        if Substitute.runs > before:
            self.reached.add(_name(item.nodeid))

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of a test."""
        if report.when == "call":
            self.outcomes[_name(report.nodeid)] = report.passed
            if report.failed:
                self.errors[_name(report.nodeid)] = str(report.longreprtext).strip().splitlines()[-1]


def _name(node: str) -> str:
    return "::".join(node.partition("[")[0].split("::")[1:])


def run(path: Path, *, replaces: bool) -> Substitution:
    """Run the tests of a file."""
    plugin = Substitution(replaces=replaces)
    pytest.main(
        ["-q", "--tb=short", "--no-header", "-p", "no:cacheprovider", "-W", "ignore", str(path)], plugins=[plugin]
    )
    return plugin


def measure(path: Path) -> dict[str, Any]:
    """Run the tests on both; return a row for each group of tests."""
    peer, own = run(path, replaces=False), run(path, replaces=True)
    groups: dict[str, dict[str, int]] = {}
    differing: dict[str, list[str]] = {}
    for name in sorted(own.reached):
        row = groups.setdefault(
            name.partition("::")[0], {"tests": 0, "peer": 0, "kompakt": 0, "design": 0, "failed": 0}
        )
        row["tests"] += 1
        row["peer"] += peer.outcomes[name]
        row["kompakt"] += own.outcomes[name]
        if not own.outcomes[name]:
            reason = next((why for why, tests in DESIGN.items() if name in tests), None)
            row["failed" if reason is None else "design"] += 1
            differing.setdefault(reason or f"failed: {own.errors[name]}", []).append(name)
    return {
        "pydantic-ai-harness": importlib.metadata.version("pydantic-ai-harness"),
        "pydantic-ai": importlib.metadata.version("pydantic-ai-slim"),
        "tests": len(peer.outcomes),
        "groups": groups,
        "differing": differing,
    }


def main() -> None:
    """Run the tests and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="tests/compaction/test_compaction.py of pydantic-ai-harness")
    result = measure(parser.parse_args().path)
    if not result["groups"]:
        sys.exit("no test ran; is the file in a folder without a conftest.py?")
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
