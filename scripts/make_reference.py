"""Generate docs/reference from the source: every rule of `check`, public name, command and setting.

Usage: python scripts/make_reference.py [--check]. With --check, nothing is written and a stale page gives exit code 1.
The rules and their messages are read from src/kompakt/wire; their meaning is in RULES. A rule without a meaning, or a
meaning without a rule, is an error.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import typer

import kompakt
from kompakt.cli.commands import app
from kompakt.engine.admission.settings import FIRM, GENTLE, AdmissionSettings
from kompakt.engine.compaction.policies import BUILT_IN
from kompakt.gateway.config import FLAGS, GatewayConfig
from kompakt.hosts.hook import KEEP_OUTPUTS
from kompakt.wire.transcripts import RULES as TRANSCRIPT_RULES

ROOT = Path(__file__).parent.parent
WIRE = ROOT / "src" / "kompakt" / "wire"
REFERENCE = ROOT / "docs" / "reference"
CODE = re.compile(r"(TX|OC|OR|AN|GE|BR|MI|DS|VL)-\d+")

PROVIDERS = {
    "TX": "Every format",
    "OC": "OpenAI Chat Completions (`openai-chat`)",
    "OR": "OpenAI Responses (`openai-responses`)",
    "AN": "Anthropic Messages (`anthropic`)",
    "GE": "Gemini (`gemini`)",
    "BR": "Bedrock Converse (`bedrock`)",
    "MI": "Mistral and servers with its templates (`strict`)",
    "DS": "DeepSeek and compatible models (`strict`)",
    "VL": "Servers with chat templates, such as vLLM (`strict`)",
}

RULES: dict[str, tuple[str, str]] = {
    "TX-1": (
        "Text is valid Unicode, without unpaired surrogates, anywhere in the request.",
        "join matching halves, replace others with U+FFFD; a changed text loses its signature",
    ),
    "OC-1": ("Each call of an assistant message has a tool message directly after it.", "close or move"),
    "OC-2": ("A tool message answers a call.", "drop"),
    "OC-3": ("Call ids are unique within a message, and each call has one result.", "rename or drop"),
    "OC-4": ("A call has an id of at most 40 characters.", "rename"),
    "OC-5": ("Content is null only in assistant messages with calls.", "empty text"),
    "OC-6": ("Lists are not empty: messages, content parts, calls.", "empty text, or remove the list"),
    "OC-7": ("The role is known to the API.", "not repairable: the intended role is unknown"),
    "OC-8": ("The arguments of a call are a string.", "write as JSON text"),
    "OC-9": (
        "The first reasoning models accept no system message; some servers accept at most 2,048 messages.",
        "change the role to user; the number of messages is not repaired",
    ),
    "OR-1": ("Each call item has an output item after it.", "close or move"),
    "OR-2": ("Each output item has a call of the matching type.", "drop"),
    "OR-3": ("An item with a server id has the reasoning item that belongs to it.", "strip the id"),
    "OR-4": ("A reasoning item is followed by the item that belongs to it.", "drop the reasoning"),
    "OR-5": ("If nothing is stored, items are sent in full and not by id.", "drop"),
    "OR-6": ("Encrypted content is sent back unchanged.", "drop the item"),
    "OR-7": ("Ids start with the prefix of their type.", "strip the id"),
    "OR-8": ("A call id has 1 to 64 characters; outputs have a maximum length.", "rename"),
    "OR-9": (
        "Items have the required fields of their type, and there is at least one item.",
        "fill in or drop; unknown types and roles are not repairable",
    ),
    "OR-10": ("A request for compaction is the last item.", "drop"),
    "OR-11": ("A history that the server stores is not sent again.", "not repairable: choose one of the two"),
    "OR-12": ("Item ids are unique.", "rename or strip"),
    "AN-1": ("Each call has a result in the next message.", "close as interrupted"),
    "AN-2": ("Each result answers a call of the previous message.", "move, or drop if there is no call"),
    "AN-3": ("Results are before all other content of their message.", "move"),
    "AN-4": ("All results for one answer are in one user message.", "move"),
    "AN-5": ("A call has one result.", "keep the last"),
    "AN-6": ("Call ids are unique in the request.", "rename call and result"),
    "AN-7": ("Ids contain only letters, digits, `_` and `-`.", "rename call and result"),
    "AN-8": ("A call of a server tool has a result.", "drop the call"),
    "AN-9": ("A result of a server tool has a call before it.", "drop the result"),
    "AN-10": ("The result of a toolset call names the toolset.", "add the name"),
    "AN-12": ("With manual thinking, an unfinished answer starts with thinking.", "turn manual thinking off"),
    "AN-13": ("Thinking has a signature.", "drop the block"),
    "AN-17": ("Text is not empty or white space only; a user message has content.", "drop, or a placeholder"),
    "AN-18": ("The last assistant text does not end with white space.", "strip"),
    "AN-19": ("From Claude 4.6 on, the last message is a user message.", "add a user message"),
    "AN-21": ("The first message is a user message.", "add a marked line"),
    "AN-22": (
        "System messages within the conversation: newer models only, and only at certain positions.",
        "change the role to user, or move to the system field",
    ),
    "AN-23": (
        "Changes of the tool list are in system messages and name declared tools.",
        "drop; an undeclared name is not repairable",
    ),
    "AN-24": ("At most four cache breakpoints, none on thinking.", "strip those above the limit"),
    "AN-25": ("Blocks have no unknown fields; the input of a call is an object.", "strip, wrap"),
    "AN-26": ("The request is not larger than the API accepts.", "not repairable: compact the request"),
    "AN-27": ("A signed compaction block is the only block and the first one.", "not repairable: its place is fixed"),
    "GE-1": ("A call follows a user content or a response.", "move, or add a marked line"),
    "GE-2": ("A response directly follows its call.", "move or drop"),
    "GE-3": ("The number of responses equals the number of calls.", "close as interrupted"),
    "GE-4": (
        "Gemini 3: the first call of each step in the current turn has a signature.",
        "add the documented sentinel",
    ),
    "GE-7": (
        "Roles are user and model and alternate; contents have parts; the last content is the user's.",
        "merge, fill in",
    ),
    "GE-8": ("Responses are first, in the order of their calls, with matching names.", "reorder, rename"),
    "GE-9": ("No thoughts and no unknown fields are sent back.", "strip"),
    "BR-1": ("All results for an answer are in the next user message.", "close or move"),
    "BR-2": ("There are not more results than calls.", "drop"),
    "BR-3": ("Tool definitions are present if there is any call or result.", "add definitions by name"),
    "BR-4": ("User and assistant messages alternate, starting with the user.", "merge, or add a marked line"),
    "BR-5": ("Some models: results and text are not in the same message.", "move the text"),
    "BR-6": ("No empty text, also not in results.", "drop, or a placeholder"),
    "BR-7": ("Ids, names, roles and fields match the service model.", "rename, strip"),
    "BR-8": ("Signed reasoning is complete; the number of cache points is limited.", "strip, or turn thinking off"),
    "MI-1": (
        "A user message does not follow a tool message; the first message is the user's.",
        "add a short message",
    ),
    "MI-3": ("The last message is not an assistant message.", "add a user message"),
    "MI-5": ("Call ids have nine letters and digits.", "rename"),
    "MI-6": ("A system message does not follow an assistant or tool message.", "change the role to user"),
    "MI-7": (
        "Function names have 1 to 64 letters, digits, `_` and `-`.",
        "not repairable: the tool is defined elsewhere",
    ),
    "DS-1": ("In thinking mode, a message with calls has its reasoning.", "add an empty one"),
    "DS-2": ("The older reasoner accepts no reasoning on answers without calls.", "strip"),
    "VL-2": ("There is at least one user message.", "add one"),
}
"""The meaning of each rule, and what ``repair`` does."""


# --- problems ----------------------------------------------------------------------------------------------------


def problems_page() -> str:
    messages, codes_used = _found()
    unknown = sorted((messages.keys() | codes_used) ^ RULES.keys())
    if unknown:
        raise SystemExit(f"make_reference: rules in wire and in RULES differ: {', '.join(unknown)}")
    lines = [
        "# Problems",
        "",
        "Every rule of `check`, with its message and what `repair` does. Codes are stable: a rule keeps its code, and",
        "a code is never reused. Missing numbers are rules that cannot be checked in a single request, for example",
        "whether thinking was edited.",
        "",
        "If a problem is not repairable, `repairable` is false and it is listed in `Repair.remaining`.",
        "",
        "This page is generated by `scripts/make_reference.py`.",
    ]
    for prefix, provider in PROVIDERS.items():
        lines += ["", f"## {provider}", "", "| code | rule | message | `repair` |", "|---|---|---|---|"]
        codes = sorted((code for code in RULES if code.startswith(f"{prefix}-")), key=_number)
        for code in codes:
            rule, repair = RULES[code]
            texts = "<br>".join(_cell(text) for text in messages.get(code, [])[:3])
            lines.append(f'| <span id="{code.lower()}">{code}</span> | {rule} | {texts} | {repair} |')
    lines += ["", "## Transcript files", "", "Problems of transcript files, by line.", ""]
    lines += ["| code | rule | `repair` |", "|---|---|---|"]
    lines += [
        f'| <span id="{code.lower()}">{code}</span> | {rule} | {FILE_REPAIRS[code]} |'
        for code, rule in TRANSCRIPT_RULES.items()
    ]
    return "\n".join(lines) + "\n"


FILE_REPAIRS = {
    "TF-1": "drop the line",
    "TF-2": "replace with U+FFFD",
    "TF-3": "drop the second record",
    "TF-4": "drop the record",
    "TF-5": "use the previous record",
    "TF-6": "not repairable: only the agent can write it",
}


def _number(code: str) -> int:
    return int(code.partition("-")[2])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _found() -> tuple[dict[str, list[str]], set[str]]:
    """Return the messages by code, and all codes in the source."""
    messages: dict[str, list[str]] = {}
    codes: set[str] = set()
    for path in sorted(WIRE.rglob("*.py")):
        for scope in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(scope, ast.Constant) and isinstance(scope.value, str) and CODE.fullmatch(scope.value):
                codes.add(scope.value)
            if isinstance(scope, ast.FunctionDef):
                for code, text in _reports(scope):
                    if text not in messages.setdefault(code, []):
                        messages[code].append(text)
    return messages, codes


def _reports(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield the code and message of each problem that a function reports."""
    assignments = [
        (target.id, node)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or len(node.args) < 3 or not isinstance(node.args[0], ast.Constant):
            continue
        code, message = node.args[0].value, node.args[2]
        is_problem = isinstance(node.func, ast.Name) and node.func.id in ("Problem", "Fault")
        if is_problem and isinstance(code, str) and CODE.fullmatch(code):
            before = [one for name, one in assignments if isinstance(message, ast.Name) and name == message.id]
            before = [one for one in before if one.lineno <= node.lineno]
            value = max(before, key=lambda one: one.lineno).value if before else message
            text = _text(value)
            if text:
                yield code, text


def _text(value: ast.expr) -> str:
    """Return a string literal; interpolated values are shown as an ellipsis."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if not isinstance(value, ast.JoinedStr):
        return ""
    return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in value.values)  # type: ignore


# --- names -------------------------------------------------------------------------------------------------------


def api_page() -> str:
    names = {name: getattr(kompakt, name) for name in kompakt.__all__ if name != "__version__"}
    functions = {n: v for n, v in names.items() if inspect.isfunction(v)}
    errors = {n: v for n, v in names.items() if inspect.isclass(v) and issubclass(v, Exception)}
    values = {n: v for n, v in names.items() if inspect.isclass(v) and n not in errors}
    others = sorted(names.keys() - functions.keys() - errors.keys() - values.keys())
    lines = ["# Public names", "", "Everything in `kompakt.__all__`. Anything else may change in any release."]
    lines += ["", "This page is generated by `scripts/make_reference.py`.", "", "## Functions"]
    for name, function in sorted(functions.items()):
        lines += ["", f"### {name}", "", "```text", _signature(name, function), "```", "", *_doc(function)]
    lines += ["", "## Values"]
    for name, value in sorted(values.items()):
        lines += ["", f"### {name}", "", *_doc(value), *_members(value)]
    lines += ["", "## Errors and warnings", "", "| name | is a | meaning |", "|---|---|---|"]
    for name, error in sorted(errors.items()):
        parents = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
        lines.append(f"| `{name}` | {parents} | {_doc(error)[0]} |")
    if others:
        lines += ["", "## Modules", "", *[line for name in others for line in _module(name, names[name])]]
    return "\n".join(lines) + "\n"


def _module(name: str, module: Any) -> Iterator[str]:
    yield f"- `kompakt.{name}`: {_doc(module)[0]}"
    yield f"  Names: {', '.join(f'`{inner}`' for inner in module.__all__)}."


def _signature(name: str, function: Any) -> str:
    text = re.sub(r"(: |-> )'([^']+)'", r"\1\2", str(inspect.signature(function)))
    if len(name + text) <= 110:
        return name + text
    inner = text[1 : text.rindex(") ->")] if ") ->" in text else text[1:-1]
    ends = text[text.rindex(") ->") :] if ") ->" in text else ")"
    return f"{name}(\n    " + re.sub(r", (?=[\w*]+(?:[:,=)]|$))", ",\n    ", inner) + f"\n{ends}"


def _doc(thing: Any) -> list[str]:
    """Return a docstring as Markdown lines."""
    text = inspect.getdoc(thing) or ""
    lines: list[str] = []
    for line in text.replace("``", "`").splitlines():
        raised = re.fullmatch(r"    (\w+): (.*)", line)
        if line == "Raises:":
            lines += ["Raises:", ""]
        elif raised:
            lines.append(f"- `{raised[1]}`: {raised[2]}")
        else:
            lines.append(line.strip())
    return lines or [""]


def _members(value: Any) -> list[str]:
    rows = [f"| `{name}` | {_type(type_)} | {_attribute_doc(value, name)} |" for name, type_ in _fields(value)]
    rows += [f"| `{name}{call}` | {returns} | {doc} |" for name, call, returns, doc in _methods(value)]
    return ["", "| member | type | meaning |", "|---|---|---|", *rows] if rows else []


def _fields(value: Any) -> list[tuple[str, str]]:
    if not issubclass(value, msgspec.Struct):
        return []
    hints = {
        name: str(type_)
        for base in reversed(value.__mro__)
        for name, type_ in vars(base).get("__annotations__", {}).items()
    }
    return [(name, hints[name]) for name in value.__struct_fields__]


def _methods(value: Any) -> Iterator[tuple[str, str, str, str]]:
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        if isinstance(member, classmethod):
            member = member.__func__
        if isinstance(member, property):
            yield name, "", _type(member.fget.__annotations__.get("return", "")), _first(member)
        elif inspect.isfunction(member):
            signature = inspect.signature(member)
            arguments = [p for p in signature.parameters if p not in ("self", "cls")]
            yield name, f"({', '.join(arguments)})", _type(signature.return_annotation), _first(member)


def _first(member: Any) -> str:
    return _doc(member)[0]


def _type(annotation: Any) -> str:
    text = str(annotation).strip("'\"").replace("|", "\\|")
    return f"`{text}`" if text else ""


def _attribute_doc(value: Any, name: str) -> str:
    """Return the string below a field in the source of its class."""
    tree = ast.parse(inspect.getsource(value)).body[0]
    assert isinstance(tree, ast.ClassDef)
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        named = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id == name
        if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return " ".join(str(after.value.value).replace("``", "`").split())
    return ""


# --- commands ----------------------------------------------------------------------------------------------------


def cli_page() -> str:
    lines = [
        "# Command line",
        "",
        "Data goes to standard output, everything else to standard error. `FILE` may be `-`: standard input. Formats",
        "are detected. `python -m kompakt` is the same as `kompakt`.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | success |",
        "| 1 | problems found, or nothing found |",
        "| 2 | usage error, or a file cannot be read |",
        "| 3 | does not fit: what must stay is larger than the budget |",
        "| 130 | interrupted with Ctrl-C |",
        "",
        "Options can also be set in a file or by variables; see [settings](settings.md).",
        "",
        GENERATED,
    ]
    for name, command in sorted(_commands().items()):
        lines += ["", f"## kompakt {name}", ""]
        lines += [f"Usage: `kompakt {name}{_usage(command)}`", "", *_help(command.help or "")]
        rows = [_option(parameter) for parameter in command.params if _is_shown(parameter)]
        if rows:
            lines += ["", "| option | meaning | variable |", "|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


GENERATED = "This page is generated by `scripts/make_reference.py`."


@cache
def _commands() -> dict[str, Any]:
    """Return the commands by name, those of a group with the name of the group before theirs."""
    root: Any = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        found |= {f"{name} {second}": one for second, one in inner.items()} if inner else {name: command}
    return {name: command for name, command in found.items() if not command.hidden}


def _is_shown(parameter: Any) -> bool:
    return parameter.name != "help" and not getattr(parameter, "hidden", False)


def _usage(command: Any) -> str:
    names = [_metavar(one) for one in command.params if one.param_type_name == "argument"]
    options = " [OPTIONS]" if any(one.param_type_name == "option" for one in command.params) else ""
    return "".join(f" {name}" for name in names) + options


def _metavar(parameter: Any) -> str:
    name = parameter.metavar or str(parameter.name).upper()
    name = f"{name}..." if parameter.nargs == -1 and not name.endswith("...") else name
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _help(text: str) -> list[str]:
    """Return a help text as Markdown; examples become a block."""
    text, _, examples = inspect.cleandoc(text).replace("\b\n", "").replace("\x08\n", "").partition("Examples:\n")
    lines = [line.strip() for line in text.rstrip().splitlines()]
    shown = [line.strip() for line in examples.splitlines() if line.strip()]
    return lines + (["", "```sh", *shown, "```"] if shown else [])


def _option(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"| `{_metavar(parameter)}` | {_sentence(getattr(parameter, 'help', None))} | |"
    names = " / ".join("".join(opts[-1:]) for opts in (parameter.opts, parameter.secondary_opts) if opts)
    short = [one for one in parameter.opts if re.fullmatch(r"-\w", one) and one != names]
    takes = "" if parameter.is_flag else f" {parameter.metavar or 'VALUE'}"
    variable = parameter.envvar if isinstance(parameter.envvar, str) else " ".join(parameter.envvar or ())
    label = "`, `".join([*short, names + takes])
    return f"| `{label}` | {_sentence(parameter.help)} | {f'`{variable}`' if variable else ''} |"


def _sentence(text: str | None) -> str:
    return _cell(" ".join((text or "").split()))


# --- settings ----------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Return the page of settings: those of commands, of the gateway, and of policies."""
    lines = [
        "# Settings",
        "",
        "A setting comes from the first of these that has it: a flag, a variable `KOMPAKT_…`, the file `kompakt.toml`.",
        "The file is read from the working directory, else from `~/.config/kompakt/`. Top-level keys apply to all",
        "commands, a table such as `[compact]` to one command. The name is that of the option, with `_` or `-`. An",
        "unknown key is an error.",
        "",
        "```toml",
        "budget = 40000              # --budget of every command that has it",
        "",
        "[count]",
        'model = "claude-opus-4-5"   # --model of `kompakt count`',
        "",
        "[serve]                     # the gateway",
        "port = 8484",
        "```",
        "",
        GENERATED,
        "",
        "## Variables of commands",
        "",
        "| variable | sets | of |",
        "|---|---|---|",
    ]
    variables: dict[str, tuple[str, list[str]]] = {}
    for name, command in _commands().items():
        for parameter in command.params:
            for variable in [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ():
                variables.setdefault(variable, (parameter.opts[-1], []))[1].append(name)
    for variable, (option, names) in sorted(variables.items()):
        single = sorted(name for name in names if not name.startswith("session "))
        inner = sorted(name for name in names if name.startswith("session "))
        listed = [f"`{name}`" for name in (*single, *(inner if len(inner) < 4 else ["session …"]))]
        lines.append(f"| `{variable}` | `{option}` | {', '.join(listed)} |")
    lines += ["", "All options are listed under [command line](cli.md).", "", "## Plugins of coding agents", ""]
    lines += [
        "The hooks of `kompakt install` read these variables from the environment of the agent.",
        "",
        "| variable | meaning |",
        "|---|---|",
        "| `KOMPAKT_STORE` | the store in which sessions are recorded |",
        f"| `{KEEP_OUTPUTS}` | 1: large tool outputs reach the model as they are; 0 or empty: in a short form |",
        "",
        "## Gateway",
        "",
    ]
    lines += [
        "In the table `[serve]`, or as variables with `KOMPAKT_` and the name in capitals, such as `KOMPAKT_MAX_BODY`."
    ]
    lines += [
        "See [the guide](../guides/gateway.md).",
        "",
        "| setting | default | meaning | flag |",
        "|---|---|---|---|",
    ]
    flags = {one.name: one for one in _commands()["serve"].params if one.param_type_name == "option"}
    for name, default in _gateway_defaults():
        option = flags.get(name) or flags.get(FLAGS.get(name, name).lstrip("-").replace("-", "_"))
        meaning = _attribute_doc(GatewayConfig, name) or (option.help if option else "")
        flag = f"`{option.opts[-1]}`" if option else ""
        lines.append(f"| `{name}` | {default} | {_sentence(meaning)} | {flag} |")
    lines += [
        "",
        "## Policies",
        "",
        "A table `[policies.NAME]` defines a policy. Built in are",
        ", ".join(f"`{name}`" for name in BUILT_IN) + "; see [compaction](../concepts/compaction.md).",
        "",
        "| key | meaning |",
        "|---|---|",
        "| `steps` | a list of tables; `strategy` names the strategy, the other keys are its parameters |",
        "| `target_share` | how far to reduce, as a share of the budget |",
        "| `admission` | how to shorten large outputs: `gentle`, `firm`, or a table of the settings below |",
        "| `admits_always` | whether large outputs are shortened in requests that fit |",
        "",
        "## Admission",
        "",
        "The fields of `AdmissionSettings`; see [large outputs](../guides/admission.md).",
        "",
        "| setting | `GENTLE` | `FIRM` | meaning |",
        "|---|---|---|---|",
    ]
    for name in AdmissionSettings.__struct_fields__:
        levels = [_shown(getattr(level, name)) for level in (GENTLE, FIRM)]
        lines.append(f"| `{name}` | {levels[0]} | {levels[1]} | {_attribute_doc(AdmissionSettings, name)} |")
    lines += ["", "Agents are configured with [`CompactionConfig`](api.md#compactionconfig)."]
    return "\n".join(lines) + "\n"


def _gateway_defaults() -> Iterator[tuple[str, str]]:
    fixed = {"store": "`gateway.db` in your data folder", "upstreams": "the official APIs"}
    for field in msgspec.structs.fields(GatewayConfig):
        if field.name == "own_policies":
            continue
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        yield field.name, fixed[field.name] if field.name in fixed else _shown(default)


def _shown(value: Any) -> str:
    if value is None or value == "" or (isinstance(value, (tuple, dict)) and not value):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, frozenset):
        return "all"
    return (
        f"{value:,}"
        if isinstance(value, int) and value > 9_999
        else f"`{value}`"
        if isinstance(value, str)
        else f"{value:g}"
    )


# --- one page a problem ------------------------------------------------------------------------------------------


def problem_pages() -> dict[str, str]:
    """Return the text of the page of each problem code. The site has them at the address p/CODE."""
    messages, _ = _found()
    pages: dict[str, str] = {}
    for code, (rule, repair) in RULES.items():
        said = [f"- {_cell(text)}" for text in messages.get(code, [])]
        provider = PROVIDERS[code.partition("-")[0]]
        pages[code] = _problem(code, f"{provider}. {rule}", repair, said)
    for code, rule in TRANSCRIPT_RULES.items():
        pages[code] = _problem(code, f"Transcript files. {rule}", FILE_REPAIRS[code], [])
    return pages


REPAIRS = {
    "close": "A result is added that says that the call was not finished. No output is invented.",
    "move": "The result is moved to where the provider expects it.",
    "drop": "The entry is removed from the request, and the change is listed.",
    "rename": "The id is changed, in the call and in its result alike.",
    "strip": "The id is removed; the content stays.",
    "not repairable": "`kompakt repair` leaves it as it is, lists it, and exits with 1.",
}
"""What the words of the tables mean."""


def _problem(code: str, rule: str, repair: str, said: list[str]) -> str:
    lines = [f"# {code}", "", rule, "", f"**What `repair` does:** {repair}."]
    lines[-1] += "".join(f" {meaning}" for word, meaning in REPAIRS.items() if re.search(rf"\b{word}\b", repair))
    lines += ["", "**Messages** (… stands for a value of your request):", "", *said] if said else []
    lines += [
        "",
        "```sh",
        "kompakt check FILE               # list the problems",
        "kompakt repair FILE -o FIXED     # repair a copy",
        "```",
        "",
    ]
    lines += [
        "[Repair a rejected session](../guides/broken-session.md) · [All problem codes](../reference/problems.md)"
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    stale = 0
    pages = {"problems.md": problems_page, "api.md": api_page, "cli.md": cli_page, "settings.md": settings_page}
    for name, write in pages.items():
        page = write()
        path = REFERENCE / name
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(page, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != page:
            print(f"docs/reference/{name} is stale; run python scripts/make_reference.py", file=sys.stderr)
            stale += 1
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
