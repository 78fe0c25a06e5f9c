"""The compared libraries behind one interface, all with OpenAI Chat messages.

Every library is called as its documentation shows. If it accepts a token counter, it gets ours; otherwise the page says
so. Converting messages to the types of a library and back is not timed, but parsing and rendering of kompakt is. A
library that is not installed is skipped.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeAlias

import kompakt

Item: TypeAlias = dict[str, Any]

MESSAGE_TOKENS = 3
"""What frames a message, and what begins the answer, in OpenAI's published counting."""


@cache
def _vocabulary() -> Any:
    from rs_bpe.bpe import openai

    return openai.o200k_base().count


@cache
def text_tokens(text: str) -> int:
    """Count a text in o200k."""
    return _vocabulary()(text)


def neutral_tokens(messages: Sequence[Item]) -> int:
    """Count messages by OpenAI's published rule: texts, names and arguments in o200k, three tokens a message."""
    total = MESSAGE_TOKENS
    for message in messages:
        total += MESSAGE_TOKENS + text_tokens(message.get("content") or "")
        for call in message.get("tool_calls") or ():
            total += text_tokens(call["function"]["name"]) + text_tokens(call["function"]["arguments"])
    return total


class Contender:
    """A library's way to shorten a history."""

    name = ""
    package = ""
    call = ""
    """The call that is made, for the reader of a table."""
    remark = ""

    def read(self, messages: Sequence[Item]) -> Any:
        """Turn chat messages into the library's own."""
        return list(messages)

    def shrink(self, native: Any, budget: int, *, fast: bool = False) -> Any:
        """Shorten; ``fast`` uses the library's own quickest counter instead of ours."""
        raise NotImplementedError

    def write(self, native: Any) -> list[Item]:
        """Turn the library's messages back into chat messages."""
        return native

    def compact(self, messages: Sequence[Item], budget: int) -> list[Item]:
        """Do all three."""
        return self.write(self.shrink(self.read(messages), budget))

    def grow(self, state: Any, new: Sequence[Item], budget: int) -> tuple[Any, list[Item]]:
        """Go one step on in a run: return what the library keeps, and the request. By default it keeps all."""
        state = [*(state or ()), *new]
        return state, self.compact(state, budget)


class Kompakt(Contender):
    """kompakt without state: the whole history comes in at every call."""

    package = "kompakt"

    def __init__(self, policy: str) -> None:
        self.name = f"kompakt, `{policy}`"
        self.policy = policy
        self.call = f'`kompakt.compact(messages, budget, policy="{policy}")`'

    def shrink(self, native: Any, budget: int, *, fast: bool = False) -> Any:
        """Shorten with a policy."""
        return kompakt.compact(native, budget, format="openai-chat", policy=self.policy).payload


class O200k:
    """The neutral counter as Agent Framework takes it."""

    def count_tokens(self, text: str) -> int:
        """Count a text."""
        return text_tokens(text)


class AgentFramework(Contender):
    """Agent Framework, composed as its samples compose it, without the step that needs a model."""

    name = "Agent Framework, composed"
    package = "agent-framework-core"
    call = (
        "`apply_compaction(messages, strategy=TokenBudgetComposedStrategy(token_budget=…, tokenizer=…, strategies="
        "[ToolResultCompactionStrategy(keep_last_tool_call_groups=1), SlidingWindowStrategy(keep_last_groups=20)]))`"
    )
    remark = "nearly all its time goes into collapsing tool results; without that step it takes 1 to 4 times kompakt's"

    def read(self, messages: Sequence[Item]) -> Any:
        """Make messages with contents."""
        from agent_framework import Content, Message

        made: list[Any] = []
        for message in messages:
            contents: list[Any] = []
            if message["role"] == "tool":
                contents = [Content.from_function_result(message["tool_call_id"], result=message["content"])]
            elif message.get("content"):
                contents = [message["content"]]
            for call in message.get("tool_calls") or ():
                said = call["function"]
                contents.append(Content.from_function_call(call["id"], said["name"], arguments=said["arguments"]))
            made.append(Message(message["role"], contents))
        return made

    def strategy(self, budget: int, tokenizer: Any) -> Any:
        """Make the strategy."""
        from agent_framework import SlidingWindowStrategy, TokenBudgetComposedStrategy, ToolResultCompactionStrategy

        steps = [
            ToolResultCompactionStrategy(keep_last_tool_call_groups=1),
            SlidingWindowStrategy(keep_last_groups=20),
        ]
        return TokenBudgetComposedStrategy(token_budget=budget, tokenizer=tokenizer, strategies=steps)

    def shrink(self, native: Any, budget: int, *, fast: bool = False) -> Any:
        """Run the strategy; exclusions are kept on the messages."""
        from agent_framework import CharacterEstimatorTokenizer, apply_compaction

        tokenizer = CharacterEstimatorTokenizer() if fast else O200k()
        return asyncio.run(apply_compaction(native, strategy=self.strategy(budget, tokenizer), tokenizer=tokenizer))

    def write(self, native: Any) -> list[Item]:
        """Write what is included."""
        return [item for message in native for item in self._items(message)]

    def _items(self, message: Any) -> list[Item]:
        results = [content for content in message.contents if content.type == "function_result"]
        if results:
            return [{"role": "tool", "tool_call_id": one.call_id, "content": str(one.result)} for one in results]
        item: Item = {"role": str(message.role), "content": message.text}
        calls = [content for content in message.contents if content.type == "function_call"]
        if calls:
            item["tool_calls"] = [_call(one.call_id, one.name, one.arguments) for one in calls]
        return [item]

    def grow(self, state: Any, new: Sequence[Item], budget: int) -> tuple[Any, list[Item]]:
        """Keep the list of messages with its exclusions, as the tool loop does."""
        state = [] if state is None else state
        state.extend(self.read(new))
        return state, self.write(self.shrink(state, budget))


class AgentFrameworkPlain(AgentFramework):
    """Agent Framework's budget alone: the oldest groups go until the rest fits."""

    name = "Agent Framework, oldest first"
    call = "`TokenBudgetComposedStrategy(token_budget=…, tokenizer=…, strategies=[])`"

    def strategy(self, budget: int, tokenizer: Any) -> Any:
        """Make the strategy."""
        from agent_framework import TokenBudgetComposedStrategy

        return TokenBudgetComposedStrategy(token_budget=budget, tokenizer=tokenizer, strategies=[])


class AgentFrameworkWindow(AgentFramework):
    """Agent Framework's context-window strategy, configured to keep the task."""

    name = "Agent Framework, context window"
    call = (
        "`ContextWindowCompactionStrategy(max_context_window_tokens=…, max_output_tokens=0, tokenizer=…, "
        "preserve_first_user_group=True)`, else its defaults"
    )
    remark = "the same step dominates"

    def strategy(self, budget: int, tokenizer: Any) -> Any:
        """Make the strategy."""
        from agent_framework import ContextWindowCompactionStrategy

        return ContextWindowCompactionStrategy(
            max_context_window_tokens=budget,
            max_output_tokens=0,
            tokenizer=tokenizer,
            preserve_first_user_group=True,
        )


def _call(id: str, name: str, arguments: Any) -> Item:
    said = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": said}}


class LangChain(Contender):
    """LangChain's trimming with the settings its documentation recommends."""

    name = "LangChain `trim_messages`"
    package = "langchain-core"
    call = (
        '`trim_messages(messages, max_tokens=…, token_counter=…, strategy="last", start_on="human", '
        "include_system=True)`"
    )

    def read(self, messages: Sequence[Item]) -> Any:
        """Make LangChain messages."""
        from langchain_core.messages import convert_to_messages

        return convert_to_messages(list(messages))

    def shrink(self, native: Any, budget: int, *, fast: bool = False) -> Any:
        """Trim."""
        from langchain_core.messages import trim_messages

        counter: Any = "approximate" if fast else langchain_tokens
        return trim_messages(
            native,
            max_tokens=budget,
            token_counter=counter,
            strategy="last",
            start_on="human",
            include_system=True,
        )

    def write(self, native: Any) -> list[Item]:
        """Let LangChain write them."""
        from langchain_core.messages import convert_to_openai_messages

        written: Any = convert_to_openai_messages(native)
        return written


def langchain_tokens(messages: Any) -> int:
    """Count LangChain messages by the neutral rule; arguments as the JSON they are sent as."""
    total = MESSAGE_TOKENS
    for message in messages:
        total += MESSAGE_TOKENS + text_tokens(message.text)
        for call in getattr(message, "tool_calls", ()):
            total += text_tokens(call["name"]) + text_tokens(json.dumps(call["args"]))
    return total


class LangChainSummary(LangChain):
    """LangChain's middleware that summarises, with one fixed sentence for a model's summary."""

    name = "LangChain `SummarizationMiddleware`"
    package = "langchain"
    call = (
        '`SummarizationMiddleware(model, trigger=("tokens", …), keep=("tokens", half of it), token_counter=…, '
        "summarizer=…).before_model(state, runtime)`"
    )
    remark = "the summary is one fixed sentence; a model's would be longer and could restate the task"

    def shrink(self, native: Any, budget: int, *, fast: bool = False) -> Any:
        """Run the hook as an agent does: the system prompt is not part of its state."""
        from langchain.agents.middleware import SummarizationMiddleware
        from langchain_core.language_models import FakeListChatModel
        from langchain_core.messages import RemoveMessage
        from langchain_core.messages.utils import count_tokens_approximately

        system = [message for message in native if message.type == "system"]
        room = max(2, budget - langchain_tokens(system))
        middleware = SummarizationMiddleware(
            FakeListChatModel(responses=["unused"]),
            trigger=("tokens", room),
            keep=("tokens", room // 2),
            token_counter=count_tokens_approximately if fast else langchain_tokens,
            summarizer=lambda _: "Earlier steps looked at the import and changed parts of it.",
        )
        rest = [message for message in native if message.type != "system"]
        state: Any = {"messages": rest}
        update = middleware.before_model(state, None)  # type: ignore[arg-type]
        if update is not None:
            rest = [message for message in update["messages"] if not isinstance(message, RemoveMessage)]
        return [*system, *rest]

    def grow(self, state: Any, new: Sequence[Item], budget: int) -> tuple[Any, list[Item]]:
        """Keep what the hook returned."""
        state = self.shrink([*(state or ()), *self.read(new)], budget)
        return state, self.write(state)


class LiteLLM(Contender):
    """LiteLLM's trimming."""

    name = "LiteLLM `trim_messages`"
    package = "litellm"
    call = "`litellm.utils.trim_messages(messages, max_tokens=…)`"
    remark = "counts with its own tokenizer and takes no other"

    def shrink(self, native: Any, budget: int, *, fast: bool = False) -> Any:
        """Trim."""
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else importing it asks the network
        from litellm.utils import trim_messages

        logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
        return trim_messages(native, max_tokens=budget)


KOMPAKT = (Kompakt("window"), Kompakt("default"))
PEERS = (AgentFramework(), AgentFrameworkWindow(), LangChain(), LangChainSummary(), LiteLLM())


def installed(contender: Contender) -> str | None:
    """Return the version of a contender's package, or nothing when it is not there."""
    try:
        return version(contender.package)
    except PackageNotFoundError:
        return None
