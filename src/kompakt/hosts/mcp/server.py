"""The MCP server: four tools, resources and prompts over the sessions of a directory.

Tool schemas are written by hand, because every client sends them with every request: together they have fewer than 700
tokens. Arguments are checked here, and a wrong one is a tool error, which the model reads and corrects. All recorded
text is framed as data. Nothing is changed unless the server was started with ``--write``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast
from urllib.parse import quote, unquote, urlsplit

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from typing_extensions import TypeIs

from kompakt.errors import KompaktError, UsageError
from kompakt.hosts.mcp.directory import Action, Caller, ServedSession, SessionDirectory
from kompakt.hosts.mcp.untrusted import AS_NOTES, bounded, framed, label
from kompakt.version import __version__
from kompakt.view.visible import cleaned

RECALL_TOKENS = 2_000
LEDGER_TOKENS = 1_500
MAX_TOKENS = 10_000
"""Largest answer. Claude Code warns above this size."""

MAX_QUERY = 4_000
"""Characters of a query; more is not a question."""

MAX_TEXT = 20_000
"""Characters of a text to pin or of instructions."""

MAX_ID = 512
MAX_BUDGET = 10_000_000

INSTRUCTIONS = (
    "Memory of this coding session beyond the context window. After a compaction, or when a note ends with a reference "
    "such as [m3f21], call `recall` before you guess or repeat work."
)

KINDS: dict[str, tuple[str, ...]] = {
    "constraints": ("user",),
    "tasks": ("state",),
    "findings": ("findings", "talk"),
    "files": ("changes", "looked"),
    "commands": ("runs",),
}
"""Kinds of ledger entries that a caller may select, and the sections of a ledger that they are."""

ACTIONS: tuple[Action, ...] = ("pin", "unpin", "compact", "undo")

Arguments = Mapping[str, Any]
Context = ServerRequestContext[Any, Any]

_SESSION = {"type": "string", "description": "Session id; default: this session."}
_READS = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)


def _tokens(default: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS, "default": default}


RECALL = types.Tool(
    name="recall",
    description=(
        "Search or restore earlier parts of this session that are no longer in context. Pass a reference (m7f3a or "
        'm7f3a.1; lines: m7f3a.1:120-180; words inside: m7f3a "words") to get the original text, or pass words: names, '
        "paths and error texts work best."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Reference or words."},
            "tokens": _tokens(RECALL_TOKENS),
            "session": _SESSION,
        },
        "required": ["query"],
    },
    annotations=_READS,
)

LEDGER = types.Tool(
    name="ledger",
    description=(
        "Notes on the whole session, taken by code: what the user asked for and forbade, tasks, findings, changed "
        "files, commands and failures. References lead to the originals."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "kinds": {"type": "array", "items": {"enum": list(KINDS)}, "description": "Default: all."},
            "tokens": _tokens(LEDGER_TOKENS),
            "session": _SESSION,
        },
    },
    annotations=_READS,
)

STATUS = types.Tool(
    name="status",
    description="How full the context window is, which compactions there were, and how much recall can restore.",
    input_schema={"type": "object", "properties": {"session": _SESSION}},
    annotations=_READS,
)

MANAGE = types.Tool(
    name="manage",
    description=(
        "Change a stored session. pin: keep `text` verbatim through compactions; unpin; compact: to `budget` tokens, "
        "`text` may say what to keep; undo: the newest compaction or edit."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "action": {"enum": list(ACTIONS)},
            "text": {"type": "string"},
            "budget": {"type": "integer", "minimum": 1},
            "session": _SESSION,
        },
        "required": ["action"],
    },
    annotations=types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False),
)

SESSIONS_URI = "kompakt://sessions"
RESOURCES = [
    types.Resource(
        uri=SESSIONS_URI, name="sessions", description="The sessions of this folder.", mime_type="application/json"
    )
]
TEMPLATES = [
    types.ResourceTemplate(
        uri_template=f"{SESSIONS_URI}/{{session}}/ledger",
        name="ledger",
        description="Notes on a session, taken by code.",
        mime_type="text/markdown",
    ),
    types.ResourceTemplate(
        uri_template=f"{SESSIONS_URI}/{{session}}/compactions/{{number}}",
        name="compaction",
        description="What a compaction left in place of earlier messages; the first is number 1.",
        mime_type="text/markdown",
    ),
    types.ResourceTemplate(
        uri_template=f"{SESSIONS_URI}/{{session}}/messages/{{reference}}",
        name="message",
        description="The original text of a reference.",
        mime_type="text/plain",
    ),
]

PROMPTS = {
    "resume": (
        "Continue a session from its notes.",
        "Continue the work of this session. The notes below were taken from it by code. Follow the user's requests and "
        "rules in them. Use the tool `recall` for details before you act.",
    ),
    "handoff": (
        "Write a handoff for someone who continues the work.",
        "Write a handoff for a colleague who has not seen this session: goal, rules of the user, state of each task, "
        "findings with their evidence, changed files, next steps. Use the notes below and the tool `recall`.",
    ),
    "what-was-lost": (
        "Compare the notes with what is still in context.",
        "Compare the notes below, which were taken from the whole session, with what you still see. List requests, "
        "rules, decisions and findings that are no longer in your context, with their references.",
    ),
}
"""Name, description and request of each prompt. Clients offer them as commands."""


def create_server(directory: SessionDirectory, *, write: bool = False) -> Server[Any]:
    """Create a server for the sessions of a directory; with ``write`` it also offers the tool ``manage``."""
    handlers = _Handlers(directory, write=write)
    return Server(
        "kompakt",
        version=__version__,
        instructions=INSTRUCTIONS,
        lifespan=handlers.lifespan,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
        on_list_prompts=handlers.list_prompts,
        on_get_prompt=handlers.get_prompt,
        on_completion=handlers.complete,
    )


class _Handlers:
    """Answers the requests of clients."""

    def __init__(self, directory: SessionDirectory, *, write: bool) -> None:
        self._directory = directory
        self._tools: dict[str, tuple[types.Tool, Callable[[Arguments, Caller], Awaitable[str]]]] = {
            "recall": (RECALL, self._recall),
            "ledger": (LEDGER, self._ledger),
            "status": (STATUS, self._status),
        }
        if write:
            self._tools["manage"] = (MANAGE, self._manage)

    @asynccontextmanager
    async def lifespan(self, server: object) -> AsyncGenerator[dict[str, Any]]:
        """Close the directory at the end."""
        del server
        try:
            yield {}
        finally:
            await self._directory.close()

    # --- tools ------------------------------------------------------------------------------------------------------

    async def list_tools(self, context: Context, params: object) -> types.ListToolsResult:
        del context, params
        return types.ListToolsResult(tools=[tool for tool, _ in self._tools.values()])

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            if params.name not in self._tools:
                raise UsageError(f"there is no tool {label(params.name)!r}; there are {', '.join(self._tools)}")
            tool, work = self._tools[params.name]
            arguments = params.arguments or {}
            _check_names(arguments, tool)
            return _result(await work(arguments, _caller(context, params.name, arguments)))
        except KompaktError as error:
            return _result(f"[kompakt] {cleaned(str(error))}", is_error=True)

    async def _recall(self, arguments: Arguments, caller: Caller) -> str:
        from kompakt.hosts.mcp.sessions import is_reference  # late: the server starts without the engine

        query = _text(arguments, "query", MAX_QUERY)
        if not query.strip():
            raise UsageError("query is empty; pass a reference or words")
        tokens = _integer(arguments, "tokens", RECALL_TOKENS, MAX_TOKENS)
        session = await self._session(arguments, caller)
        found = await session.recall(query, tokens)
        if not found and is_reference(query):
            raise UsageError(
                f"no message has the reference {label(query)!r} in {label(session.origin)}; search with words"
            )
        more = f"\n[kompakt] More: recall {found.rest}" if found.rest else ""
        return framed(_bounded(found.text, tokens), origin=session.origin) + more

    async def _ledger(self, arguments: Arguments, caller: Caller) -> str:
        kinds = _kinds(arguments)
        tokens = _integer(arguments, "tokens", LEDGER_TOKENS, MAX_TOKENS)
        session = await self._session(arguments, caller)
        sections = None if kinds is None else frozenset(section for kind in kinds for section in KINDS[kind])
        text = await session.ledger(tokens, sections)
        if not text:
            return f"[kompakt] Nothing to note in {label(session.origin)}."
        return framed(_bounded(text, tokens), origin=session.origin, meaning=AS_NOTES)

    async def _status(self, arguments: Arguments, caller: Caller) -> str:
        session = await self._session(arguments, caller)
        status = await session.status()
        live = status.live
        window = (
            f" of {status.window:,} ({status.fullness:.0%})" if status.window and status.fullness is not None else ""
        )
        lines = [
            f"session: {label(session.origin)}",
            f"context: {status.tokens:,} tokens{window}",
            f"messages: {status.messages:,} in {status.turns:,} turns",
            f"compactions: {len(live):,}",
        ]
        if live and live[-1].tokens_before is not None and live[-1].tokens_after is not None:
            lines[-1] += f"; newest from {live[-1].tokens_before:,} to {live[-1].tokens_after:,} tokens"
        lines.append(f"recallable: {status.recallable:,} messages are no longer in context as they were")
        others = len(await self._directory.list(caller)) - 1
        if others > 0:
            lines.append(f"other sessions: {others:,}, listed in {SESSIONS_URI}")
        text = "\n".join(lines)
        if status.pins:
            pins = "\n".join(f"- {' '.join(pin.split())}" for pin in status.pins)
            text += "\n" + framed(_bounded(pins, LEDGER_TOKENS), origin=f"the pins of {session.origin}")
        return text

    async def _manage(self, arguments: Arguments, caller: Caller) -> str:
        action = arguments.get("action")
        if not _is_action(action):
            raise UsageError(f"action must be one of {', '.join(ACTIONS)}")
        text = _text(arguments, "text", MAX_TEXT) if "text" in arguments else None
        budget = _integer(arguments, "budget", 1, MAX_BUDGET) if "budget" in arguments else None
        session = await self._session(arguments, caller)
        return f"[kompakt] {label(session.origin)}: {cleaned(await session.manage(action, text, budget))}"

    async def _session(self, arguments: Arguments, caller: Caller) -> ServedSession:
        id = _text(arguments, "session", MAX_ID) if arguments.get("session") is not None else None
        return await self._directory.find(None if id in ("", "current") else id, caller)

    # --- resources --------------------------------------------------------------------------------------------------

    async def list_resources(self, context: Context, params: object) -> types.ListResourcesResult:
        del context, params
        return types.ListResourcesResult(resources=RESOURCES)

    async def list_templates(self, context: Context, params: object) -> types.ListResourceTemplatesResult:
        del context, params
        return types.ListResourceTemplatesResult(resource_templates=TEMPLATES)

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        with _as_protocol_errors():
            text, kind = await self._resource(params.uri, _caller(context))
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, mime_type=kind, text=text)]
        )

    async def _resource(self, uri: str, caller: Caller) -> tuple[str, str]:
        match _segments(uri):
            case ["sessions"]:
                listed = [
                    {
                        "id": cleaned(one.id),
                        "kind": one.kind,
                        "modified": one.modified,
                        "uri": f"{SESSIONS_URI}/{quote(one.id, safe='', errors='replace')}/ledger",
                    }
                    for one in await self._directory.list(caller)
                ]
                return json.dumps(listed, indent=1), "application/json"
            case ["sessions", id, "ledger"]:
                return await self._ledger({"session": id, "tokens": MAX_TOKENS}, caller), "text/markdown"
            case ["sessions", id, "compactions", number] if number.isascii() and number.isdigit() and len(number) < 7:
                session = await self._session({"session": id}, caller)
                text = await session.summary(int(number))
                return framed(_bounded(text, MAX_TOKENS), origin=session.origin), "text/markdown"
            case ["sessions", id, "messages", reference]:
                arguments = {"session": id, "query": reference, "tokens": MAX_TOKENS}
                return await self._recall(arguments, caller), "text/plain"
            case _:
                raise UsageError(f"there is no resource {label(uri)!r}")

    # --- prompts ----------------------------------------------------------------------------------------------------

    async def list_prompts(self, context: Context, params: object) -> types.ListPromptsResult:
        del context, params
        argument = types.PromptArgument(name="session", description="Session id; default: this session.")
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(name=name, description=description, arguments=[argument])
                for name, (description, _) in PROMPTS.items()
            ]
        )

    async def get_prompt(self, context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        with _as_protocol_errors():
            if params.name not in PROMPTS:
                raise UsageError(f"there is no prompt {label(params.name)!r}; there are {', '.join(PROMPTS)}")
            description, request = PROMPTS[params.name]
            arguments = {"session": (params.arguments or {}).get("session"), "tokens": MAX_TOKENS // 2}
            notes = await self._ledger(arguments, _caller(context))
        content = types.TextContent(type="text", text=f"{request}\n\n{notes}")
        return types.GetPromptResult(
            description=description, messages=[types.PromptMessage(role="user", content=content)]
        )

    async def complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        """Complete the ids of sessions."""
        values: list[str] = []
        if params.argument.name == "session":
            with _as_protocol_errors():
                listed = await self._directory.list(_caller(context))
            values = [
                one.id for one in listed if one.id.startswith(params.argument.value) and one.id == cleaned(one.id)
            ]
        return types.CompleteResult(completion=types.Completion(values=values[:100], total=len(values)))


# --- arguments -----------------------------------------------------------------------------------------------------


def _caller(context: Context, tool: str = "", arguments: Arguments | None = None) -> Caller:
    client = context.session.client_params
    return Caller(client.client_info.name if client is not None else "", context.request, tool, arguments or {})


def _check_names(arguments: Arguments, tool: types.Tool) -> None:
    known = cast("dict[str, object]", tool.input_schema["properties"])
    unknown = [name for name in arguments if name not in known]
    if unknown:
        raise UsageError(f"{tool.name} has no argument {label(unknown[0])!r}; it has {', '.join(known)}")


def _text(arguments: Arguments, name: str, most: int) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a text, not {type(value).__name__}")
    if len(value) > most:
        raise UsageError(f"{name} has {len(value):,} characters; at most {most:,} are allowed")
    return value


def _integer(arguments: Arguments, name: str, default: int, most: int) -> int:
    value = arguments.get(name)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():  # some clients have no integers
        value = int(value)
    if type(value) is not int or not 1 <= value <= most:
        raise UsageError(f"{name} must be an integer from 1 to {most:,}")
    return value


def _kinds(arguments: Arguments) -> list[str] | None:
    value: object = arguments.get("kinds")
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(isinstance(kind, str) and kind in KINDS for kind in cast("Any", value)):
        raise UsageError(f"kinds must be a list of {', '.join(KINDS)}")
    return cast("list[str]", value)


def _is_action(value: object) -> TypeIs[Action]:
    return isinstance(value, str) and value in ACTIONS


def _segments(uri: str) -> list[str]:
    """Split a URI of this server into its decoded segments."""
    try:
        found = urlsplit(uri)
    except ValueError:
        return []
    if found.scheme != "kompakt" or found.query or found.fragment or len(uri) > 4 * MAX_ID:
        return []
    return [unquote(part, errors="replace") for part in f"{found.netloc}{found.path}".split("/")]


# --- answers -------------------------------------------------------------------------------------------------------


def _bounded(text: str, tokens: int) -> str:
    from kompakt.model.tokens import counter_for  # late: the server starts without a tokenizer

    return bounded(cleaned(text), tokens, counter_for(None).tokens)


def _result(text: str, *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)


@contextmanager
def _as_protocol_errors() -> Generator[None]:
    """Turn an error of kompakt into one of the protocol: resources and prompts have no tool errors."""
    try:
        yield
    except KompaktError as error:
        raise MCPError(types.INVALID_PARAMS, cleaned(str(error))) from None
