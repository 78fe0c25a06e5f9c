"""Every help page: it fits 80 columns, and its examples use options that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.commands import run
from typer.main import get_command

from kompakt.cli.commands import EXIT_CODES, app
from kompakt.cli.store_options import STORE


def _walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _walk(inner, (*path, name))


COMMANDS = dict(_walk(get_command(app)))
LEAVES = [path for path, command in COMMANDS.items() if not hasattr(command, "commands")]

WORD = re.compile(r"--?[a-z][\w-]*")


def _examples(command: Any) -> list[str]:
    text = (command.help or "").partition("Examples:")[2]
    return [line.strip() for line in text.splitlines() if line.strip()]


class TestPages:
    @pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "kompakt")
    def test_no_line_is_wider_than_80_columns(self, path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tests.cli.commands.ENVIRONMENT", {"COLUMNS": "80"})
        page = run(*path, "--help")
        assert page.code == 0
        assert [line for line in page.out.splitlines() if len(line) > 80] == []

    @pytest.mark.parametrize("path", LEAVES, ids=" ".join)
    def test_a_page_has_two_examples_of_existing_options(self, path: tuple[str, ...]) -> None:
        command = COMMANDS[path]
        examples = [line for line in _examples(command) if f"kompakt {' '.join(path)}" in line]
        assert len(examples) >= 2, command.help
        known = {text for parameter in command.params for text in (*parameter.opts, *parameter.secondary_opts)}
        for line in examples:
            used = line.partition(f"kompakt {' '.join(path)}")[2]
            assert {word for word in shlex.split(used) if WORD.fullmatch(word)} <= known, line

    @pytest.mark.parametrize("path", [path for path in COMMANDS if path not in LEAVES], ids=lambda path: " ".join(path))
    def test_a_page_with_subcommands_has_examples_and_whole_summaries(self, path: tuple[str, ...]) -> None:
        page = run(*path, "--help").out
        assert len(_examples(COMMANDS[path])) >= 2
        assert "..." not in page.partition("\nCommands:")[2]
        assert ("--install-completion" in page) == (path == ())

    def test_the_exit_codes_are_explained(self) -> None:
        assert EXIT_CODES in " ".join(run("--help").out.split())

    def test_the_same_option_has_the_same_placeholder(self) -> None:
        """Except for options that name different things, such as a file or a folder."""
        seen: dict[str, dict[str, list[str]]] = {}
        for path, command in COMMANDS.items():
            for parameter in command.params:
                for name in parameter.opts if parameter.param_type_name == "option" else ():
                    shown = (parameter.metavar or "").partition("[,")[0]  # some options take a list
                    seen.setdefault(name, {}).setdefault(shown, []).append(" ".join(path))
        several = {name: shown for name, shown in seen.items() if len(shown) > 1}
        assert several.keys() <= {"--session", "--out", "-o"}, several

    def test_a_store_is_explained_in_the_same_words_everywhere(self) -> None:
        helps = [
            parameter.help
            for command in COMMANDS.values()
            for parameter in command.params
            if "--store" in parameter.opts
        ]
        assert len(helps) > 20
        assert [text for text in helps if not text.endswith(f": {STORE}")] == []
