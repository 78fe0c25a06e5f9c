"""Arguments that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

File: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="FILE", help="A request body, a list of messages or a transcript; - reads standard input."),
]
Format: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--format", help="openai-chat, openai-responses, anthropic, gemini or bedrock; detected when not given."
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]
Strict: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--strict", help="Also apply the rules of servers that merely speak the format (Mistral, DeepSeek, …)."
    ),
]
