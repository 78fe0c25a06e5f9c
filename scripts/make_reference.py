"""Write docs/reference from the source: every rule that `check` knows, every public name.

Usage: python scripts/make_reference.py [--check]. With --check nothing is written and a stale page gives exit 1. The
meaning of a rule is a sentence here; which rules exist, what is said about them and what can be mended is read from
src/kompakt/wire, so a rule without a sentence, or a sentence without a rule, is an error.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import kompakt
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
    "DS": "DeepSeek and its kin (`strict`)",
    "VL": "Servers that run chat templates, such as vLLM (`strict`)",
}

RULES: dict[str, tuple[str, str]] = {
    "TX-1": (
        "Text is Unicode: no half of a surrogate pair, anywhere in the request.",
        "join halves that belong together, replace others by U+FFFD; a text that changes loses its signature",
    ),
    "OC-1": ("Each call of an assistant message is answered by a tool message directly behind it.", "close or move"),
    "OC-2": ("A tool message answers a call; it never stands alone.", "drop"),
    "OC-3": ("An id names one call of a message, and each call is answered once.", "rename or drop"),
    "OC-4": ("A call has an id of at most 40 characters.", "rename"),
    "OC-5": ("Content is null only where an assistant message makes calls.", "empty text"),
    "OC-6": ("Lists are not empty: messages, content parts, calls.", "empty text, or take the list out"),
    "OC-7": ("The role is one that the API knows.", "nothing: only you know what was meant"),
    "OC-8": ("The arguments of a call are a string.", "write as JSON text"),
    "OC-9": (
        "The first reasoning models take no system message; some servers stop at 2,048 messages.",
        "make it the user's; the number is left",
    ),
    "OR-1": ("Each call item has its output item behind it.", "close or move"),
    "OR-2": ("Each output item has its call, of the fitting type.", "drop"),
    "OR-3": ("An item that keeps its server id needs the reasoning that led to it.", "strip the id"),
    "OR-4": ("Reasoning is followed by what it led to.", "drop the reasoning"),
    "OR-5": ("Where nothing is stored, items are sent whole and not by id.", "drop"),
    "OR-6": ("Encrypted content is sent back as it came.", "drop the item"),
    "OR-7": ("Ids begin with the letters of their type.", "strip the id"),
    "OR-8": ("A call id has 1 to 64 characters; outputs have a greatest length.", "rename"),
    "OR-9": (
        "Items have the fields their type demands, and there is at least one.",
        "fill in or drop; unknown types and roles are left",
    ),
    "OR-10": ("A request for compaction is the last item.", "drop"),
    "OR-11": ("A history kept by the server is not sent a second time.", "nothing: choose one of the two"),
    "OR-12": ("Ids name one item only.", "rename or strip"),
    "AN-1": ("Each call is answered by a result in the next message.", "close as interrupted"),
    "AN-2": ("Each result answers a call of the message before.", "move, or drop where no call is left"),
    "AN-3": ("Results come before any other content of their message.", "move"),
    "AN-4": ("All results of one answer stand in one user message.", "move"),
    "AN-5": ("A call is answered once.", "keep the last"),
    "AN-6": ("An id names one call in the whole request.", "rename call and result"),
    "AN-7": ("Ids have letters, digits, `_` and `-` only.", "rename call and result"),
    "AN-8": ("A call of a server tool has its result.", "drop the call"),
    "AN-9": ("A result of a server tool has its call before it.", "drop the result"),
    "AN-10": ("The result of a toolset's call names the toolset.", "add the name"),
    "AN-12": ("With manual thinking on, an unfinished answer begins with its thinking.", "turn manual thinking off"),
    "AN-13": ("Thinking carries its signature.", "drop the block"),
    "AN-17": ("Text is not empty and not white space alone; a user message has content.", "drop, or a placeholder"),
    "AN-18": ("The assistant's last words do not end in white space.", "strip"),
    "AN-19": ("From Claude 4.6 on, the user has the last word.", "add a user message"),
    "AN-21": ("The first message is the user's.", "add a marked line"),
    "AN-22": (
        "System messages amid the talk: newer models only, and in few places.",
        "make it the user's, or the body's system",
    ),
    "AN-23": (
        "Changes of the tool list stand in system messages and name declared tools.",
        "drop; an undeclared name is left",
    ),
    "AN-24": ("At most four cache breakpoints, none on thinking.", "strip those over the limit"),
    "AN-25": ("Blocks have no fields the API does not know; the input of a call is an object.", "strip, wrap"),
    "AN-26": ("The request is not larger than the API takes.", "nothing: it has to get smaller"),
    "AN-27": ("A signed compaction block is the first block and the only one.", "nothing: its place is fixed"),
    "GE-1": ("A call follows a user content or a response.", "move, or add a marked line"),
    "GE-2": ("A response follows its call directly.", "move or drop"),
    "GE-3": ("There are as many responses as calls.", "close as interrupted"),
    "GE-4": (
        "Gemini 3: the first call of each step in the current turn carries its signature.",
        "the documented sentinel",
    ),
    "GE-7": ("Roles are user and model, they alternate, contents have parts, the user is last.", "merge, fill in"),
    "GE-8": ("Responses stand first, in the order of their calls, with fitting names.", "put right one by one"),
    "GE-9": ("No thoughts and no unknown fields are sent back.", "strip"),
    "BR-1": ("All results of an answer stand in the next user message.", "close or move"),
    "BR-2": ("There are no more results than calls.", "drop"),
    "BR-3": ("Tool definitions are sent as long as any call or result is.", "add definitions, by name only"),
    "BR-4": ("User and assistant alternate, the user begins.", "merge, or add a marked line"),
    "BR-5": ("Some models: results and words are not in one message.", "put the words apart"),
    "BR-6": ("No empty text, also not in results.", "drop, or a placeholder"),
    "BR-7": ("Ids, names, roles and fields have the form of the service model.", "rename, strip"),
    "BR-8": ("Signed reasoning is whole; cache points have a limit.", "strip, or turn thinking off"),
    "MI-1": ("The user does not speak right after a tool; the history begins with the user.", "add a short message"),
    "MI-3": ("The last message is not the assistant's.", "add a user message"),
    "MI-5": ("Call ids are nine letters and digits.", "rename"),
    "MI-6": ("A system message does not follow assistant or tool.", "make it the user's"),
    "MI-7": ("Function names have 1 to 64 letters, digits, `_` and `-`.", "nothing: the tool is named elsewhere too"),
    "DS-1": ("In thinking mode a message with calls carries its reasoning.", "add an empty one"),
    "DS-2": ("The older reasoner takes no reasoning back on plain answers.", "strip"),
    "VL-2": ("There is at least one user message.", "add one"),
}


# --- problems ----------------------------------------------------------------------------------------------------


def problems_page() -> str:
    """Write the page of rules."""
    said, final = _found()
    unknown = sorted((said.keys() | final) ^ RULES.keys())
    if unknown:
        raise SystemExit(f"make_reference: rules and sentences differ: {', '.join(unknown)}")
    lines = [
        "# Problems",
        "",
        "Every rule that `check` knows, with the words it uses and what `repair` does. The codes are stable: a rule",
        "keeps its code, and a code is never used again for something else. Numbers that are missing are rules that a",
        "request body alone cannot show (thinking compared with what the API once sent, for example).",
        "",
        "Where `repair` does nothing, the problem has `repairable` set to false and stays in `Repair.remaining`.",
        "",
        "This page is written by `scripts/make_reference.py`.",
    ]
    for prefix, provider in PROVIDERS.items():
        lines += ["", f"## {provider}", "", "| code | rule | `check` says | `repair` |", "|---|---|---|---|"]
        codes = sorted((code for code in RULES if code.startswith(f"{prefix}-")), key=_number)
        for code in codes:
            rule, mend = RULES[code]
            words = "<br>".join(_cell(text) for text in said.get(code, [])[:3])
            lines.append(f"| {code} | {rule} | {words} | {mend} |")
    lines += ["", "## Transcript files", "", "What `check` and `repair` say about the file of an agent, by line.", ""]
    lines += ["| code | rule | `repair` |", "|---|---|---|"]
    lines += [f"| {code} | {rule} | {FILE_REPAIRS[code]} |" for code, rule in TRANSCRIPT_RULES.items()]
    return "\n".join(lines) + "\n"


FILE_REPAIRS = {
    "TF-1": "drop the line",
    "TF-2": "write the text with U+FFFD in its place",
    "TF-3": "drop the second record",
    "TF-4": "drop the record",
    "TF-5": "name the record before it",
    "TF-6": "nothing: only the agent can write it",
}


def _number(code: str) -> int:
    return int(code.partition("-")[2])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _found() -> tuple[dict[str, list[str]], set[str]]:
    """Read which codes the source names, and what it says where it reports one."""
    said: dict[str, list[str]] = {}
    codes: set[str] = set()
    for path in sorted(WIRE.rglob("*.py")):
        for scope in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(scope, ast.Constant) and isinstance(scope.value, str) and CODE.fullmatch(scope.value):
                codes.add(scope.value)
            if isinstance(scope, ast.FunctionDef):
                for code, text in _reports(scope):
                    if text not in said.setdefault(code, []):
                        said[code].append(text)
    return said, codes


def _reports(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Find the problems a function reports, with texts that stand in it."""
    given = [
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
            before = [one for name, one in given if isinstance(message, ast.Name) and name == message.id]
            before = [one for one in before if one.lineno <= node.lineno]
            value = max(before, key=lambda one: one.lineno).value if before else message
            text = _text(value)
            if text:
                yield code, text


def _text(value: ast.expr) -> str:
    """Read a text; what is filled in at run time shows as an ellipsis."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if not isinstance(value, ast.JoinedStr):
        return ""
    return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in value.values)  # type: ignore


# --- names -------------------------------------------------------------------------------------------------------


def api_page() -> str:
    """Write the page of public names."""
    names = {name: getattr(kompakt, name) for name in kompakt.__all__ if name != "__version__"}
    functions = {n: v for n, v in names.items() if inspect.isfunction(v)}
    errors = {n: v for n, v in names.items() if inspect.isclass(v) and issubclass(v, Exception)}
    values = {n: v for n, v in names.items() if inspect.isclass(v) and n not in errors}
    others = sorted(names.keys() - functions.keys() - errors.keys() - values.keys())
    lines = ["# Public names", "", "Everything in `kompakt.__all__`. What is not listed here is free to change."]
    lines += ["", "This page is written by `scripts/make_reference.py`.", "", "## Functions"]
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
    """Describe a public module and list its names."""
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
    """Give a docstring as Markdown: double backticks become single ones, `Raises` a list."""
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
    rows += [f"| `{name}{call}` | {returns} | {said} |" for name, call, returns, said in _methods(value)]
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
    """Find the string under a field in the source of its class."""
    tree = ast.parse(inspect.getsource(value)).body[0]
    assert isinstance(tree, ast.ClassDef)
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        named = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id == name
        if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return " ".join(str(after.value.value).replace("``", "`").split())
    return ""


def main(arguments: list[str]) -> int:
    """Write both pages, or compare them."""
    stale = 0
    for name, page in (("problems.md", problems_page()), ("api.md", api_page())):
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
