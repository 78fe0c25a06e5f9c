"""Which files a shell command plainly reads, writes or removes.

Only what is certain without running it: removals, moves, copies, redirections, in-place edits. A word with a variable
or a pattern does not name a file, quoted text is not a command, and commands that run only if another one failed are
ignored. Linear in the command.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

MAX_COMMAND = 20_000
"""Characters of a command that are read."""

MAX_WORDS = 400
"""Words of one simple command that are read."""

_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(?:\\?(\w[\w.-]*)|'([^'\n]{1,80})'|\"([^\"\n]{1,80})\")")
_TOKEN = re.compile(
    r"(?P<space>[ \t\r]+|\\\n)|(?P<comment>(?<![^\s;&|(])#[^\n]*)|(?P<end>&&|\|\|?|;|\n|&(?![>&]))"
    r"|(?P<out>(?<![0-9])[12]?>>?(?![>&(])|&>>?|[0-9]?<)"
    r"|(?P<word>(?:[^\s;&|<>\"'\\#]++|(?<=[^\s;&|])#|\\.|\"(?:[^\"\\]++|\\.)*+\"|'[^']*+')+)"
    r"|(?P<other>.)",
    re.DOTALL,
)
_PLAIN = re.compile(r"[\w./~@+-]*\w")
_RANGE = re.compile(r"[\d,;p$]+")
_QUOTING = re.compile(
    r"^\s*(?:cd [^&;|]+(?:&&|;)\s*)?(?:cat|head|tail|less|more|grep|rg|ag|sed|awk|bat|nl|find|ls|jq|tree)\b"
    r"|\bgit\b[^|;&]{0,80}\b(?:diff|show|log|blame|grep)\b"
)

_FILTERED = re.compile(r"\|\s*(?:head|grep|egrep|rg|jq|awk|cut|sed|sort|uniq|python3?)\b[^|]*$")

Operations = Iterator[tuple[str, str]]


def quotes(command: str) -> bool:
    """Return whether a command prints existing text, so that a failure in its output is not its own."""
    return _QUOTING.search(command[:MAX_COMMAND]) is not None


def only_prints(command: str, *, is_cut: bool) -> bool:
    """Return whether an output only shows some lines of something, so that its last lines are no verdict on anything.

    That is so for commands that list or show something if their output was filtered, or if only the end of it is known
    (``is_cut``), and for the end of any filtered output.
    """
    is_filtered = _FILTERED.search(command[:MAX_COMMAND]) is not None
    return (is_filtered and is_cut) or ((is_filtered or is_cut) and only_looks(command))


def only_looks(command: str) -> bool:
    """Return whether a command changes nothing and runs nothing of the project: all its programs list or print."""
    return all(map(_looks, programs(command)))


_LISTS = "cd ls find tree wc which pwd stat du df file type whoami hostname uname id env printenv date ps history for"
_PRINTS = "cat head tail less more grep egrep rg ag nl sort uniq tr diff cut awk sed jq xxd strings echo printf [ [["
_LOOKS = frozenset(f"{_LISTS} {_PRINTS} open view goto test".split())
"""Commands that only look at something or print it. A few only filter what others print."""

_LOOKS_AT = re.compile(
    r"git (?:status|log|diff|show|blame|grep|ls-\w+|rev-\w+|cat-file|branch(?! -[dDmM])|remote(?! (?:add|set|remove))"
    r"|describe|reflog|config --get|shortlog|merge-base|name-rev|stash (?:list|show)|worktree list|tag(?: -[ln]|$))"
    r"(?![\w-])"
    r"|(?:gh|glab) \w+ (?:view|list|diff|checks|status)\b"
    r"|(?:docker|kubectl|podman) (?:ps|get|logs|describe|images|inspect)\b"
    r"|(?:npm|pip|uv pip|cargo|go) (?:ls|list|show|view|info|tree)\b"
    r"|(?:scroll|find|search)_\w+"
)
"""Commands of programs that can do more, and of agents' own shells."""

_RECORDS = "mkdir touch chmod chown mv cp rm ln tee git gh glab"
_RUNS_NOTHING = frozenset(f"{_RECORDS} export sleep true".split())
"""Commands that change files or record changes, and run no other program of the project."""


def runs_something(command: str) -> bool:
    """Return whether a command runs a program: a test, a build, a script. Unknown commands count as programs."""
    return any(one.runs for one in programs(command))


class Program(NamedTuple):
    """One command of a chain, by the program that it starts."""

    words: list[str]
    """The name of the program and its arguments; ``?`` alone where a quote is not closed."""
    end: str
    """The operator after it; empty at the end of the chain."""

    @property
    def line(self) -> str:
        """The words on one line."""
        return " ".join(" ".join(self.words).split())

    @property
    def runs(self) -> bool:
        """Whether it may run something of the project, or any command that its arguments name."""
        return self.words[0] not in _RUNS_NOTHING and not _looks(self)


def _looks(program: Program) -> bool:
    name, *arguments = program.words
    if (name == "sed" and any(map(_IN_PLACE.match, arguments))) or (name == "find" and "-exec" in arguments):
        return False
    return name in _LOOKS or _LOOKS_AT.match(program.line) is not None


def programs(command: str) -> list[Program]:
    """List the commands of a chain.

    What a here-document or a quoted argument contains is no command. Commands in a substitution, and those given to a
    shell as an argument, are listed too.
    """
    found: list[Program] = []
    for one in _chain(_without_documents(command[:MAX_COMMAND])):
        words = _from_program(one.words)
        inner = words[2:3] if words[:1] and words[0] in _SHELLS and words[1:2] in (["-c"], ["-lc"]) else []
        for text in [*one.substituted, *inner]:
            found += [Program(_from_program(each.words), each.end or one.end) for each in _chain(text)]
        if not inner:
            found.append(Program(words if one.end != "?" else ["?"], one.end))
    return [one for one in found if one.words]


_IN_PLACE = re.compile(r"-i|--in-place")
_SHELLS = frozenset(["bash", "sh", "zsh"])
_READS_COMMANDS = re.compile(r"\b(?:ba|z|s)?sh\b")
_BEFORE_PROGRAM = re.compile(
    r"\w+=(?!\$\().*|[!(){}]+|sudo|time|timeout|nohup|nice|command|env|if|then|else|elif|while|until|do|done|fi|esac"
)
"""Words before the name of a program: variables, keywords, and programs that run another one."""

_OPTION = re.compile(r"-.*|\d+[smh]?")
_GIT_OPTION = re.compile(r"-[cC]|--(?:git-dir|work-tree|namespace)")
"""Options between ``git`` and its command that have a value."""


def _from_program(words: list[str]) -> list[str]:
    """Return the words of a command from its program on, without the program's folder and options of git itself."""
    start = 0
    while start < len(words) and (
        _BEFORE_PROGRAM.fullmatch(words[start]) or (start and _OPTION.fullmatch(words[start]))
    ):
        start += 1
    if start == len(words):
        return []
    name = words[start].strip("(){}!").rpartition("$(")[2].rpartition("/")[2]
    start += 1
    while name == "git" and start < len(words) and words[start].startswith("-"):
        start += 2 if _GIT_OPTION.fullmatch(words[start]) else 1
    return [name, *words[start:]]


class _Simple(msgspec.Struct, gc=False):
    """One command of a chain."""

    words: list[str]
    outputs: list[tuple[str, str]]
    """Sign and target of each redirection."""
    substituted: list[str]
    """Text of commands whose output is among the words."""
    doubtful: bool = False
    """Whether it runs only if another one failed."""
    end: str = ""
    """The operator after it; ``?`` if a quote in it is not closed."""


def file_operations(command: str) -> Operations:
    """Yield what a command does to files, as (operation, path)."""
    if ">" not in command and not any(name in command for name in _KNOWN):
        return
    folder: str | None = ""
    for one in _chain(_without_documents(command[:MAX_COMMAND])):
        if one.words and one.words[0] == "cd":
            target = one.words[1] if len(one.words) == 2 else ""
            folder = posixpath.join(folder or "", target) if _is_plain(target) or target == ".." else None
        if (
            one.doubtful
            or one.end == "?"
            or one.words[:1] == ["[["]
            or (one.end not in ("", "&&") and any(how[:1] in "2&" for how, _ in one.outputs))
        ):
            continue
        for how, path in one.outputs:
            if how in (">", "1>", ">>", "1>>") and _is_plain(path) and not path.startswith("/dev/"):
                yield ("modified" if how.endswith(">>") else "created"), _below(folder, path)
        known = _KNOWN.get(one.words[0]) if one.words else None
        if known is not None:
            found = known(one.words[1:])
            yield from ((how, _below(folder, path)) for how, path in found) if folder else found


def _below(folder: str | None, path: str) -> str:
    """Return a path as seen from where the command started; unchanged if the folder is not known."""
    return posixpath.normpath(posixpath.join(folder, path)) if folder and path[:1] != "~" else path


def _without_documents(command: str) -> str:
    """Remove here-documents, but not the rest of the line that starts one, nor commands that a shell reads from it.

    What has no last line is no document.
    """
    if "<<" not in command:
        return command
    lines = command.split("\n")
    last = {line.strip(): number for number, line in enumerate(lines)}
    kept: list[str] = []
    until: list[str] = []
    is_script = False
    for number, line in enumerate(lines):
        if until:
            if line.strip() == until[0]:
                del until[0]
            elif is_script:
                kept.append(line)
            continue
        begun = ["".join(names) for names in _HEREDOC.findall(line)]
        if begun and all(last.get(name, 0) > number for name in begun):
            until, is_script = begun, _READS_COMMANDS.search(line) is not None
            line = _HEREDOC.sub(" ", line)
        kept.append(line)
    return "\n".join(kept)


def _chain(command: str) -> Iterator[_Simple]:
    """Split a chain into its commands; the text after an unclosed quote is ignored."""
    one = _Simple([], [], [])
    sign = ""
    for token in _TOKEN.finditer(command):
        kind, text = token.lastgroup, token[0]
        if kind == "end":
            one.end = text
            yield one
            one = _Simple([], [], [], doubtful=text == "||" or (one.doubtful and text in ("&&", "|")))
        elif kind == "out":
            sign = text
            continue
        elif kind == "word" and sign:
            one.outputs.append((sign, _bare(text)))
        elif kind == "word" and len(one.words) < MAX_WORDS:
            one.words.append(_bare(text))
            if "$(" in text and text[0] != "'":
                one.substituted += text.split("$(")[1:]
        elif kind == "other" and text in "\"'":
            one.end = "?"
            break
        elif kind == "space":
            continue
        sign = ""
    yield one


def _bare(word: str) -> str:
    """Remove the quotes around a whole word."""
    return word[1:-1] if len(word) > 1 and word[0] in "\"'" and word[0] == word[-1] else word


def _is_plain(word: str) -> bool:
    return _PLAIN.fullmatch(word) is not None


def _names(words: list[str]) -> list[str]:
    """Return the words that name a file."""
    return [word for word in words if word[:1] != "-" and _is_plain(word) and ("/" in word or "." in word)]


def _remove(words: list[str]) -> Operations:
    return (("deleted", name) for name in _names(words))


def _move(words: list[str]) -> Operations:
    names = _names(words)
    if len(names) == 2:
        yield from (("deleted", names[0]), ("created", names[1]))


def _copy(words: list[str]) -> Operations:
    names = _names(words)
    if len(names) == 2:
        yield "created", names[1]


def _touch(words: list[str]) -> Operations:
    return (("created", name) for name in _names(words))


def _tee(words: list[str]) -> Operations:
    how = "modified" if "-a" in words else "created"
    return ((how, name) for name in _names(words))


def _edit(words: list[str]) -> Operations:
    """Yield what sed does: it changes files with -i, and reads them if it only prints."""
    names = _names(words[1:])
    if any(map(_IN_PLACE.match, words)):
        return (("modified", name) for name in names[-1:])
    return (("read", name) for name in names[-1:] if any(_RANGE.fullmatch(word) for word in words))


def _read(words: list[str]) -> Operations:
    return (("read", name) for name in _names(words))


_KNOWN: dict[str, Callable[[list[str]], Operations]] = {
    "rm": _remove, "unlink": _remove, "mv": _move, "cp": _copy, "touch": _touch, "tee": _tee, "sed": _edit,
    "cat": _read, "head": _read, "tail": _read, "less": _read, "nl": _read,
}  # fmt: skip
