"""Compaction settings of an agent. Those of a call take precedence over the agent's, and these over the client's."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, TypeAlias

import msgspec

from kompakt.agent.client import ChatClient, ConfiguredClient, limits_of
from kompakt.agent.compaction import PREPARE_SHARE, is_async
from kompakt.agent.summarizer.llm import LLMSummarizer
from kompakt.engine.compaction.policies import AnyPolicy, Policy, policy_named
from kompakt.engine.pivot.pivot import Summarizer
from kompakt.engine.strategies import OutputPruning, Shortening, SourceAttribution, Summarization
from kompakt.errors import UsageError
from kompakt.model.budget import OUTPUT_CAP, Budget
from kompakt.model.tokens import Tokenizer

_log = logging.getLogger("kompakt.agent")

HookResult: TypeAlias = str | Iterable[str] | None
CompactionHook: TypeAlias = Callable[[str], HookResult | Awaitable[HookResult]]
"""Takes the id of a session; returns lines for the instructions of its compaction."""


class CompactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When and how an agent compacts its history. ``None`` means: not set at this level."""

    auto: bool | None = None
    """Whether to compact automatically. Default: true. Requested compactions are always made."""
    prune: bool | None = None
    """Whether old tool outputs are hidden before messages are summarized, in large batches when a compaction is due. By
    default this is part of the ``default`` policy only. ``True`` adds it to any other policy, ``False`` removes it."""
    economic: bool | None = None
    """Whether to compact a prompt that still fits if that makes the run cheaper. By default only above half of the
    window, and no further than an ordinary compaction. ``True`` allows it at any size, and to a much smaller prompt."""
    native: Literal["off", "demand", "threshold", "edits"] | None = None
    """Whether the provider compacts, if it can: on demand when a compaction is due (``demand``), automatically above a
    threshold (``threshold``), or by clearing old tool outputs (``edits``). kompakt compacts when the provider does not.
    Default: ``off``."""
    budget: int | Budget | None = None
    policy: AnyPolicy | None = None
    """A name, a ``Policy`` or one strategy. Its own triggers apply in addition to the budget."""
    summarizer: Summarizer | Literal["auto", "off"] | None = None
    """Writes a narrative next to the facts that code extracts. ``auto``, the default, asks ``summary_model``; ``off``
    leaves the summary to code, which also takes over when the model fails. An ``LLMSummarizer`` may use another client
    than the agent."""
    summary_model: str | None = None
    """The model that ``auto`` asks, of the same provider. Default: the client's own."""
    prepare: bool | float | None = None
    """Whether an asynchronous summarizer runs in the background before the compaction is due. Default: true. A number
    is the share of the trigger at which it starts."""
    tokenizer: Tokenizer | None = None
    """Counts tokens instead of the model's own counter: a ``Counter``, or a function from a text to its tokens."""
    instructions: str | None = None
    """What the summary should pay attention to."""
    before_compaction: CompactionHook | None = None
    """Called with the session id before a compaction. The lines that it returns are added to the instructions. It may
    be asynchronous. An exception is logged, and the compaction continues without the lines."""
    resume: bool | str | None = None
    """The message that asks the agent to continue after an automatic compaction. A text replaces the default text,
    ``False`` omits the message. Default: true."""
    question: str | None = None
    """The user message before a summary, in the application's own words, for example in another language. A summary
    keeps its question until the next compaction."""
    output_cap: int | None = None
    """Most tokens that are reserved for an answer."""

    def __post_init__(self) -> None:
        if self.prepare is not None and not 0 <= self.prepare <= 1:
            raise UsageError(f"prepare={self.prepare!r} is not a share; use True, False or a number between 0 and 1")
        if isinstance(self.summarizer, str) and self.summarizer not in ("auto", "off"):
            raise UsageError(f"summarizer={self.summarizer!r} is not known; use 'auto', 'off' or a summarizer")

    def over(self, other: CompactionConfig) -> CompactionConfig:
        """Return these settings, with those that are ``None`` taken from another config."""
        own = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(other, **own)


def config_of(client: ChatClient, *given: CompactionConfig | None) -> CompactionConfig:
    """Merge configs, most specific first, and that of the client."""
    config = CompactionConfig()
    for one in (*given, client.compaction if isinstance(client, ConfiguredClient) else None):
        config = config.over(one) if one is not None else config
    return config


def summarizer_of(client: ChatClient, config: CompactionConfig) -> Summarizer | None:
    """Return the summarizer of an agent: the given one, by default a model, and ``None`` for code alone."""
    if config.summarizer == "off":
        return None
    if config.summarizer is None or config.summarizer == "auto":
        return LLMSummarizer(client, config.summary_model) if _asks_model(config) else None
    return config.summarizer


def _asks_model(config: CompactionConfig) -> bool:
    """Return whether the policy summarizes and leaves open who writes the summary."""
    steps = [step for step in policy_of(config).steps if isinstance(step, Summarization)]
    return bool(steps) and all(step.summarizer is None for step in steps)


def policy_of(config: CompactionConfig) -> Policy:
    """Return the policy, with or without pruning of tool outputs."""
    policy, default = policy_named(config.policy or "default"), policy_named("default")
    has_pruning = any(isinstance(step, OutputPruning) for step in policy.steps)
    if config.prune is False:
        steps = tuple(step for step in policy.steps if not isinstance(step, OutputPruning))
    elif not has_pruning and (config.prune or policy is default):
        gentle = (Shortening, SourceAttribution)
        at = next((n for n, step in enumerate(policy.steps) if not isinstance(step, gentle)), len(policy.steps))
        steps = (*policy.steps[:at], OutputPruning(), *policy.steps[at:])
    else:
        return policy
    return msgspec.structs.replace(policy, steps=steps)


async def instructions_of(config: CompactionConfig, session: str) -> str | None:
    """Return the instructions for a compaction, with the lines of the hook."""
    lines: list[str] = []
    if config.before_compaction is not None:
        try:
            found = config.before_compaction(session)
            result = await found if isinstance(found, Awaitable) else found
            lines = [result] if isinstance(result, str) else list(result or ())
        except Exception as error:  # noqa: BLE001 — a hook is user code and must not end the run
            _log.warning("before_compaction failed: %r", error)
    return "\n".join(filter(None, [config.instructions, *lines])) or None


def prepares_at(config: CompactionConfig) -> float:
    """Return the share of the trigger at which background compaction starts; 0 disables it."""
    by_default = config.summarizer is None or config.summarizer == "auto"
    in_background = _asks_model(config) if by_default else is_async(config.summarizer)
    if config.auto is False or config.native not in (None, "off") or not in_background:
        return 0.0
    return PREPARE_SHARE if config.prepare is None or config.prepare is True else float(config.prepare)


def economic_of(config: CompactionConfig) -> bool | None:
    """Return whether to compact to save money; never if the provider compacts automatically."""
    return False if config.auto is False or config.native in ("threshold", "edits") else config.economic


def budget_of(client: ChatClient, config: CompactionConfig) -> Budget:
    """Return the configured budget, else the budget of the client's model."""
    if isinstance(config.budget, Budget):
        return config.budget
    if config.budget is not None:
        return Budget.of(config.budget)
    return Budget.for_model(limits_of(client), output_cap=config.output_cap or OUTPUT_CAP)
