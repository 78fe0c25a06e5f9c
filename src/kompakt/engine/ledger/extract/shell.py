"""Which files a shell command plainly reads, writes or removes.

Only what is certain without running it: removals, moves, copies, redirections, in-place edits. A word with a variable
or a pattern does not name a file, quoted text is not a command, and commands that run only if another one failed are
ignored. Linear in the command.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator

import msgspec

MAX_COMMAND = 20_000
"""Characters of a command that are read."""

MAX_WORDS = 400
"""Words of one simple command that are read."""

_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)(\w+)\1")
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

_LOOKING = re.compile(
    r"\s*(?:cd [^&;|]+(?:&&|;)\s*)?(?:"
    r"(?:ls|cat|head|tail|less|more|grep|rg|ag|find|tree|wc|which|pwd|stat|du|df|file|env|printenv|echo|date|ps|jq|nl|sort|open|view|goto"
    r"|diff|cut|awk|sed -n|type|whoami|hostname|uname|id|history|xxd|strings|scroll_\w+|find_\w+|search_\w+)\b"
    r"|git (?:-C \S+ )?(?:status|log|diff|show|blame|grep|ls-\w+|rev-\w+|cat-file|branch(?! -[dDmM])"
    r"|remote(?! (?:add|set|remove))|describe|reflog|config --get|shortlog|merge-base|name-rev|stash (?:list|show)"
    r"|worktree list|tag -l)\b"
    r"|(?:gh|glab) \w+ (?:view|list|diff|checks|status)\b"
    r"|(?:docker|kubectl|podman) (?:ps|get|logs|describe|images|inspect)\b"
    r"|(?:npm|pip|uv pip|cargo|go) (?:ls|list|show|view|info|tree)\b)"
)
_FILTERED = re.compile(r"\|\s*(?:head|grep|egrep|rg|jq|awk|cut|sed|sort|uniq|python3?)\b[^|]*$")

Operations = Iterator[tuple[str, str]]


def quotes(command: str) -> bool:
    """Return whether a command prints existing text, so that a failure in its output is not its own."""
    return _QUOTING.search(command[:MAX_COMMAND]) is not None


def only_prints(command: str, *, is_cut: bool) -> bool:
    """Return whether an output only shows some lines of something, so that its last lines are no verdict on anything.

    That is so for a command that lists or shows something if its output was filtered, or if only the end of it is known
    (``is_cut``), and for the end of any filtered output.
    """
    command = command[:MAX_COMMAND]
    is_filtered = _FILTERED.search(command) is not None
    return (_LOOKING.match(command) is not None and (is_cut or is_filtered)) or (is_filtered and is_cut)


_LOOKS = "cd ls cat head tail less more grep egrep rg ag find tree wc which pwd stat du df file printenv echo"
_FILTERS = "printf date ps jq nl sort uniq tr diff cut awk sed type whoami hostname uname id history sleep true export"
_RECORDS = "mkdir touch chmod chown mv cp rm ln tee git gh glab"
_RUNS_NOTHING = frozenset(f"{_LOOKS} {_FILTERS} {_RECORDS}".split())
"""Commands that look, print, move files or record changes, and run no other program of the project."""


def runs_something(command: str) -> bool:
    """Return whether a command runs a program: a test, a build, a script. Unknown commands count as programs."""
    command = _without_documents(command[:MAX_COMMAND])
    if command.count("'") % 2 or command.count('"') % 2:  # a quote that is not closed ends the chain
        return True
    chain = _chain(command)
    return any(one.words and one.words[0] not in _RUNS_NOTHING for one in chain)


class _Simple(msgspec.Struct, gc=False):
    """One command of a chain."""

    words: list[str]
    outputs: list[tuple[str, str]]
    """Sign and target of each redirection."""
    doubtful: bool = False
    """Whether it runs only if another one failed."""
    end: str = ""
    """The operator after it."""


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
    """Remove here-documents, but not the rest of the line that starts one."""
    if "<<" not in command:
        return command
    kept: list[str] = []
    until = ""
    for line in command.split("\n"):
        if until:
            until = "" if line.strip() == until else until
            continue
        begun = _HEREDOC.search(line)
        kept.append(_HEREDOC.sub(" ", line) if begun else line)
        until = begun[2] if begun else ""
    return "\n".join(kept)


def _chain(command: str) -> Iterator[_Simple]:
    """Split a chain into its commands; the text after an unclosed quote is ignored."""
    one = _Simple([], [])
    sign = ""
    for token in _TOKEN.finditer(command):
        kind, text = token.lastgroup, token[0]
        if kind == "end":
            one.end = text
            yield one
            one = _Simple([], [], doubtful=text == "||" or (one.doubtful and text in ("&&", "|")))
        elif kind == "out":
            sign = text
            continue
        elif kind == "word" and sign:
            one.outputs.append((sign, _bare(text)))
        elif kind == "word" and len(one.words) < MAX_WORDS:
            one.words.append(_bare(text))
        elif kind == "other" and text in "\"'":
            return
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
    if any(word.startswith(("-i", "--in-place")) for word in words):
        return (("modified", name) for name in names[-1:])
    return (("read", name) for name in names[-1:] if any(_RANGE.fullmatch(word) for word in words))


def _read(words: list[str]) -> Operations:
    return (("read", name) for name in _names(words))


_KNOWN: dict[str, Callable[[list[str]], Operations]] = {
    "rm": _remove, "unlink": _remove, "mv": _move, "cp": _copy, "touch": _touch, "tee": _tee, "sed": _edit,
    "cat": _read, "head": _read, "tail": _read, "less": _read, "nl": _read,
}  # fmt: skip
