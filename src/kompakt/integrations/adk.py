"""Google ADK: a plugin that keeps the requests of all agents of an app inside the context window.

It changes what one request sends. The events of the session stay whole. A request that the model rejects as too long is
shortened and sent once more. Contents of ADK have the format of Gemini already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Unpack
from urllib.parse import quote

from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME
from kompakt.integrations.conversation import (
    AdapterArguments,
    AdapterOptions,
    Conversations,
    Converter,
    RequestFrame,
    missing,
    overflow_of,
)
from kompakt.model.lru import Lru
from kompakt.model.messages import JsonObject
from kompakt.session.store import Store

try:
    from google.adk.agents import Context, LlmAgent
    from google.adk.models.llm_request import LlmRequest
    from google.adk.models.llm_response import LlmResponse
    from google.adk.plugins import BasePlugin
    from google.adk.tools import FunctionTool
    from google.genai.types import Content, Tool
    from pydantic import BaseModel
except ImportError as error:
    raise missing("adk", error) from error

__all__ = ["KompaktPlugin"]

MAX_UNANSWERED = 1_000
"""Requests in flight whose contents are kept for a second attempt."""


_role, _parts, _fields = attrgetter("role"), attrgetter("parts"), attrgetter("__dict__")
_known_role, _known_parts = itemgetter(0), itemgetter(1)


class _Snapshot:
    """The fields of a call, a result or media. Copies of a part share them with the event, or have them without id."""

    __slots__ = ("_fields",)

    def __init__(self, original: BaseModel) -> None:
        self._fields = deepcopy(vars(original))

    def __eq__(self, other: object) -> bool:
        return getattr(other, "__dict__", None) == self._fields

    __hash__ = None  # type: ignore[assignment]


class _GeminiConverter(Converter[Content]):
    """Contents of ADK as contents of Gemini.

    ADK copies contents and parts for every request. Comparing their fields as dictionaries takes a fraction of the time
    of Pydantic's own comparison.
    """

    format = "gemini"
    compared = 128  # a copy consists of many objects, so comparing it takes more than a microsecond

    def to_wire(self, item: Content) -> Sequence[JsonObject]:
        return (item.model_dump(mode="json", by_alias=True, exclude_none=True),)

    def from_wire(self, item: JsonObject, original: Content | None) -> Content:
        return Content.model_validate(item)

    def remember(self, item: Content) -> tuple[str | None, Sequence[Mapping[str, Any]]]:
        """Return the role and the fields of the parts. The content itself may be changed later."""
        return item.role, [
            {name: _Snapshot(one) if isinstance(one, BaseModel) else deepcopy(one) for name, one in vars(part).items()}
            for part in item.parts or ()
        ]

    def same(self, items: Sequence[Content], known: Sequence[Any]) -> bool:
        """Compare roles, numbers of parts and all fields of all parts, in one pass for each."""
        parts = [one or () for one in map(_parts, items)]
        before = list(map(_known_parts, known))
        return (
            list(map(_known_role, known)) == list(map(_role, items))
            and list(map(len, before)) == list(map(len, parts))
            # The snapshots are on the left, else Pydantic is asked first.
            and list(chain.from_iterable(before)) == list(map(_fields, chain.from_iterable(parts)))
        )


class KompaktPlugin(BasePlugin):
    """Keeps the requests of an app inside the context window: ``App(…, plugins=[KompaktPlugin(budget=…)])``.

    ``budget`` is a number of tokens or a ``Budget``; by default it is the window of the model. ``pins`` are texts that
    must be kept verbatim. ``store`` gets the whole conversation at each compaction. The model gets a ``recall`` tool
    once something has left its context, unless ``recall=False``.
    """

    def __init__(
        self,
        *,
        store: Store | str | None = None,
        recall: bool = True,
        name: str = "kompakt",
        **options: Unpack[AdapterArguments],
    ) -> None:
        super().__init__(name)
        self._options = AdapterOptions(store=store, recall=recall, **options)
        self._conversations = Conversations(_GeminiConverter(), self._options)
        self._given: Lru[str, list[Content]] = Lru(MAX_UNANSWERED)
        """The whole contents of the request in flight, by run and conversation: a second attempt starts from them."""
        self._recall_tool = self._make_recall_tool()

    def _make_recall_tool(self) -> FunctionTool:
        async def recall(query: str, tool_context: Context) -> str:
            return (await self._conversations.get(_key(tool_context)).arecall(query)).text

        recall.__name__, recall.__doc__ = TOOL_NAME, TOOL_DESCRIPTION
        return FunctionTool(recall)

    async def before_model_callback(self, *, callback_context: Context, llm_request: LlmRequest) -> LlmResponse | None:
        """Send the compacted view of the contents.

        A request that continues an interaction is left as it is: the server has the contents before it.
        """
        if llm_request.previous_interaction_id is not None:
            return
        key, given = _key(callback_context), list(llm_request.contents)
        conversation = self._conversations.get(key)
        self._given.put(_run_key(callback_context), given)
        if conversation.hides:
            self._offer_recall(llm_request)
        llm_request.contents = await conversation.aview(given, _frame(llm_request))
        if conversation.hides:
            self._offer_recall(llm_request)

    def _offer_recall(self, llm_request: LlmRequest) -> None:
        if self._options.recall and TOOL_NAME not in llm_request.tools_dict:
            llm_request.append_tools([self._recall_tool])

    async def on_model_error_callback(
        self, *, callback_context: Context, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        """Shorten a request that was too long, and send it once more.

        Raises:
            Overflowed: the shorter request is too long as well. ADK wraps it in a ``RuntimeError``.
        """
        refused, key = overflow_of(error), _key(callback_context)
        given, agent = self._given.get(_run_key(callback_context)), callback_context.get_invocation_context().agent
        if refused is None or given is None or not isinstance(agent, LlmAgent):
            return None

        async def attempt(view: list[Content]) -> LlmResponse | None:
            llm_request.contents = view
            answers = [one async for one in agent.canonical_model.generate_content_async(llm_request)]
            return answers[-1] if answers else None

        return await self._conversations.get(key).asend(given, _frame(llm_request), attempt, refused=refused)


def _key(context: Context) -> str:
    session = context.session
    branch = context.get_invocation_context().branch or ""
    parts = (session.app_name, session.user_id, session.id, branch, context.agent_name)
    # Quoted, so that user "a-b" with session "c" and user "a" with session "b-c" have different names.
    return "adk-" + "/".join(quote(part, safe=" :@+") for part in parts)


def _run_key(context: Context) -> str:
    return f"{_key(context)}-{context.invocation_id}"


def _frame(request: LlmRequest) -> RequestFrame:
    system: Any = request.config.system_instruction
    tools = [
        one.model_dump(mode="json", by_alias=True, exclude_none=True)
        for one in request.config.tools or ()
        if isinstance(one, Tool)
    ]
    return RequestFrame(
        {"contents": [], "tools": tools} if tools else {}, system if isinstance(system, str) else "", request.model
    )
