"""Shell commands, parsed far enough to see which files they touch.

Quoting, chains, pipes and redirections are understood. Here-documents are skipped, and a line that cannot be split is
ignored. Linear in the length of the command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from kompakt.evals.history_events import HistoryEvent

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_ENDS = frozenset([";", "&&", "||", "|", "&", "(", ")", ";;", "|&", "{", "}"])
_PREFIXES = frozenset(["sudo", "time", "env", "nohup", "command", "then", "do", "else", "!", "exec"])
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*")
_PLAIN = re.compile(r"[\w@%+=:,./~-]+")


def command_of(event: HistoryEvent) -> str | None:
    """Return the shell command of a call, recognised by the shape of its input, or ``None``."""
    fields = event.input
    if any(isinstance(fields.get(key), str) for key in ("path", "file_path", "filename")):
        return None
    for key in ("command", "cmd", "script"):
        value = fields.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            words: list[str] = value
            wrapped = len(words) > 2 and words[1] in ("-c", "-lc", "-ic")
            return words[2] if wrapped else " ".join(words)
    return None


_FILTERS = frozenset(["tail", "head", "grep", "less", "cat"])
"""Programs that select what is shown of an output. The same command with another filter is the same command."""


def first_line(command: str, limit: int = 60) -> str:
    """Return the first line of a command without the filter of its output, cut after a word."""
    parts = command.strip().split("\n", 1)[0].split("|")
    while len(parts) > 1 and parts[-2].strip() and parts[-1].split()[:1] and parts[-1].split()[0] in _FILTERS:
        parts.pop()
    line = "|".join(parts).rstrip().removesuffix("2>&1").rstrip()
    kept = line[:limit]
    if len(line) > limit and _is_letter(line[limit]):
        kept = kept.rstrip("".join(filter(_is_letter, set(kept))))
    return kept.rstrip() or line[:limit]


def _is_letter(character: str) -> bool:
    return character.isalnum() or character == "_"


def operations(command: str) -> Iterator[tuple[str, str]]:
    """Yield ``(operation, path)`` for each file that a command clearly reads, creates, modifies or deletes."""
    for words, outputs in _simple_commands(command):
        for sign, target in outputs:
            if _is_file(target):
                yield ("created" if sign == ">" else "modified"), target
        if words:
            yield from _touched(words[0].rsplit("/", 1)[-1], words[1:])


def programs(command: str) -> list[str]:
    """List the programs of a command, in order."""
    return [words[0].rsplit("/", 1)[-1] for words, _ in _simple_commands(command) if words]


_QUOTING = frozenset(["cat", "head", "less", "more", "grep", "rg", "sed", "awk", "bat", "nl", "find", "ls", "jq"])
_GIT_QUOTING = frozenset(["blame", "diff", "grep", "log", "show"])
_PRINTING = _QUOTING | {"cd", "pwd", "echo", "tail", "wc", "sort", "uniq", "cut", "tr", "which", "tree", "stat", "diff"}
_GIT_PRINTING = _GIT_QUOTING | {"status", "branch", "ls-files", "ls-tree", "rev-parse", "remote", "config"}


def quotes(command: str) -> bool:
    """Return whether the output of a command quotes files or the history of a repository."""
    parts = [words for words, _ in _simple_commands(command) if words]
    ran = programs(command)
    return bool(ran and ran[0] in _QUOTING) or any(_git_order(words) in _GIT_QUOTING for words in parts)


def only_prints(command: str) -> bool:
    """Return whether a command does nothing but print what exists."""
    if any(operation != "read" for operation, _ in operations(command)):
        return False
    parts = [words for words, _ in _simple_commands(command) if words]
    return bool(parts) and all(_prints(words) for words in parts)


def _prints(words: list[str]) -> bool:
    order = _git_order(words)
    return order in _GIT_PRINTING if order is not None else words[0].rsplit("/", 1)[-1] in _PRINTING


def _git_order(words: list[str]) -> str | None:
    """Return the subcommand of git; empty if it has none, ``None`` for another program."""
    if words[0].rsplit("/", 1)[-1] != "git":
        return None
    return next((word for word in words[1:] if not word.startswith("-") and "/" not in word), "")


def _touched(program: str, arguments: list[str]) -> Iterator[tuple[str, str]]:
    options = [word for word in arguments if word.startswith("-")]
    files = [word for word in arguments if _is_file(word)]
    match program:
        case "rm" | "unlink":
            yield from (("deleted", name) for name in files)
        case "git" if arguments[:1] == ["rm"] and "--cached" not in options:
            yield from (("deleted", name) for name in files if name != "rm")
        case "mv" if len(files) == 2:
            yield from (("deleted", files[0]), ("created", files[1]))
        case "cp" if len(files) == 2 and not options:
            yield "created", files[1]
        case "sed" | "perl" if any(re.match(r"-\w*i|--in-place", one) for one in options):
            yield from (("modified", name) for name in files if "." in name.rsplit("/", 1)[-1])
        case "tee":
            yield from (("modified" if "-a" in options else "created", name) for name in files)
        case "touch":
            yield from (("created", name) for name in files)
        case "cat" | "head" | "tail" | "less" | "more" | "nl" | "bat":
            yield from (("read", name) for name in files if "." in name.rsplit("/", 1)[-1])
        case "sed" if "-n" in options:
            yield from (("read", name) for name in files if re.search(r"\.\w", name))
        case _:
            return


def _is_file(word: str) -> bool:
    """Return whether a word clearly names one file."""
    if word.startswith(("-", "&", "/dev/", "$")) or not _PLAIN.fullmatch(word):
        return False
    return "/" in word.rstrip("/") or bool(re.search(r"[\w-]\.\w{1,8}$", word)) or word.isupper()


def _simple_commands(command: str) -> Iterator[tuple[list[str], list[tuple[str, str]]]]:
    """Yield the words and the output redirections of each command in a chain."""
    for line in _lines(command):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        lexer.commenters = "#"
        try:
            tokens = list(lexer)
        except ValueError:
            continue
        yield from _chain(tokens)


def _chain(tokens: list[str]) -> Iterator[tuple[list[str], list[tuple[str, str]]]]:
    words: list[str] = []
    outputs: list[tuple[str, str]] = []
    waiting = ""
    for token in tokens:
        if token in _ENDS:
            yield _without_prefixes(words), outputs
            words, outputs, waiting = [], [], ""
        elif token in (">", ">>", ">|"):
            waiting = ">>" if token == ">>" else ">"
            if words and words[-1] in ("1", "2"):
                waiting = waiting if words.pop() == "1" else "2"
        elif token.startswith((">&", "<", "&>")):
            waiting = "skip"
        elif waiting:
            if waiting in (">", ">>"):
                outputs.append((waiting, token))
            waiting = ""
        else:
            words.append(token)
    yield _without_prefixes(words), outputs


def _without_prefixes(words: list[str]) -> list[str]:
    at = 0
    while at < len(words) and (words[at] in _PREFIXES or _ASSIGNMENT.fullmatch(words[at])):
        at += 1
    return words[at:]


def _lines(command: str) -> Iterator[str]:
    """Yield logical lines: continuations and open quotes joined, here-documents removed."""
    end: str | None = None
    held = ""
    for line in command.split("\n"):
        if end is not None:
            end = None if line.strip() == end else end
            continue
        held = f"{held}\n{line}" if held else line
        if held.endswith("\\"):
            held = held[:-1]
            continue
        found = _HEREDOC.search(held)
        if found is not None:
            end = found[2]
            held = held[: found.start()] + held[found.end() :]
        elif _open_quote(held):
            continue
        yield held
        held = ""
    if held:
        yield held


def _open_quote(text: str) -> bool:
    plain = text.replace("\\'", "").replace('\\"', "")
    return bool(plain.count("'") % 2 or plain.count('"') % 2)
