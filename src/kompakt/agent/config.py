"""How an agent compacts: one value, given at the call, at the agent or at the client, in this order."""

from __future__ import annotations

from typing import Literal

import msgspec

from kompakt.agent.background_compaction import SHARE, awaits
from kompakt.agent.client import ChatClient, ConfiguredClient
from kompakt.engine.compaction.policies import AnyPolicy, Policy, policy_named
from kompakt.engine.pivot.summarizer import Summarizer
from kompakt.errors import UsageError
from kompakt.model.budget import OUTPUT_CAP, Budget
from kompakt.model.limits import Limits, lookup, with_window
from kompakt.model.tokens import Tokenizer
from kompakt.wire.registry import WIRES


class CompactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When and how the history of an agent is compacted; ``None`` leaves it to whoever is asked next."""

    auto: bool | None = None
    """Whether anything is compacted that nobody asked for by hand; true when nobody says."""
    prune: bool | None = None
    """Whether old tool outputs are hidden before anything else goes, in batches at the trigger."""
    economic: bool | None = None
    """Whether a prompt that still fits is compacted when that makes the run cheaper. By default only above half of the
    window, and no further than a compaction that is due would go; with ``True`` at any size, and to far less."""
    native: Literal["off", "demand", "threshold", "edits"] | None = None
    """Whether the provider compacts, where it can: asked when it is due, or by itself, by a summary from a size on or
    by hiding old tool outputs. kompakt does what the provider does not."""
    budget: int | Budget | None = None
    policy: AnyPolicy | None = None
    """A name, a ``Policy`` or one strategy. Triggers of its own count beside the budget."""
    summarizer: Summarizer | None = None
    """Writes a narrative beside the facts that code has taken; its model may be another than the agent's."""
    prepare: bool | float | None = None
    """Whether a summary that has to be waited for is written ahead, while the agent works; true when nobody says. A
    number is the share of the trigger at which that begins."""
    tokenizer: Tokenizer | None = None
    """Counts tokens instead of the model's own counter: a ``Counter``, or a function from a text to its tokens."""
    instructions: str | None = None
    output_cap: int | None = None
    """Most tokens that are kept free for an answer."""

    def __post_init__(self) -> None:
        """Refuse a share that is none."""
        if self.prepare is not None and not 0 <= self.prepare <= 1:
            raise UsageError(f"prepare={self.prepare!r} is not a share; use True, False or a number between 0 and 1")

    def over(self, other: CompactionConfig) -> CompactionConfig:
        """Take from another what this one leaves open."""
        mine = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(other, **mine)


def config_of(client: ChatClient, *given: CompactionConfig | None) -> CompactionConfig:
    """Put together what is said at the call, at the agent and at the client."""
    config = CompactionConfig()
    for one in (*given, client.compaction if isinstance(client, ConfiguredClient) else None):
        config = config.over(one) if one is not None else config
    return config


def policy_of(config: CompactionConfig) -> Policy:
    """Say which policy compacts."""
    return policy_named(config.policy or ("conservative" if config.prune else "default"))


def prepares_at(config: CompactionConfig) -> float:
    """Say at which share of the trigger a compaction is prepared; 0 where it is not."""
    if config.auto is False or config.native not in (None, "off") or not awaits(config.summarizer):
        return 0.0
    return SHARE if config.prepare is None or config.prepare is True else float(config.prepare)


def economic_of(config: CompactionConfig) -> bool | None:
    """Return whether a prompt that fits may be compacted; never where the provider compacts by itself."""
    return False if config.auto is False or config.native in ("threshold", "edits") else config.economic


def limits_of(client: ChatClient) -> Limits:
    """Return what a client's model takes and writes.

    Window and output limit are the client's, the limit of the prompt alone is the model's own.
    """
    separate = WIRES[client.format].contract.separate_output
    found = with_window(lookup(client.model), client.context_window, separate=separate)
    return msgspec.structs.replace(found, output=client.output_limit)


def budget_of(client: ChatClient, config: CompactionConfig) -> Budget:
    """Make the budget of a client's model, unless one was given."""
    if isinstance(config.budget, Budget):
        return config.budget
    if config.budget is not None:
        return Budget.of(config.budget)
    return Budget.for_model(limits_of(client), output_cap=config.output_cap or OUTPUT_CAP)
