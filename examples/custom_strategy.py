"""A custom strategy: if a tool was called again with the same arguments, hide its older results.

    python examples/custom_strategy.py [SESSION.json] [--budget 30000]

Without SESSION.json it uses a session that comes with kompakt. The function is used as a step of a policy, and on a
stored session, where it can be undone. Needs no model and no network.
"""

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files

import kompakt

BUNDLED = str(files("kompakt") / "data" / "long-session.json")


async def hide_repeated(context: kompakt.Context) -> bool:
    """Hide all but the newest result of the same call.

    A strategy reads a context, changes it with its methods, and returns whether it changed anything. Hidden results
    keep their position and their reference, so the request stays valid and everything can be recalled.
    """
    asked: dict[str, str] = {}
    answers: dict[str, list[tuple[int, int]]] = {}
    for index in context.shown_indices():
        for part, piece in enumerate(context.shown(index).parts):
            if isinstance(piece, kompakt.ToolCall):
                asked[piece.id] = json.dumps([piece.name, piece.input], sort_keys=True)
            elif isinstance(piece, kompakt.ToolResult) and piece.call_id in asked:
                answers.setdefault(asked[piece.call_id], []).append((index, part))
    older = [place for places in answers.values() for place in places[:-1]]
    hidden = [place for place in older if context.prune(*place)]
    return bool(hidden)


def compacted(payload: object, budget: int) -> None:
    """Use the strategy as the first step of a policy; the next steps do the rest."""
    steps = (hide_repeated, kompakt.strategies.Summarization())
    done = kompakt.compact(payload, budget, policy=kompakt.Policy("no-repeats", steps))
    print(f"compact: {done.tokens_before} -> {done.tokens_after} tokens")
    saved = Counter[str]()
    for step in done.report.steps:
        saved[step.strategy] += step.tokens_before - step.tokens_after
    for strategy, tokens in saved.items():
        print(f"  {strategy} took out {tokens}")


async def stored(payload: object) -> None:
    """Run the strategy alone on a stored session, inspect the result, and undo it."""
    async with await kompakt.open_store("memory:") as store:
        session = await store.session("example")
        await session.save(payload)
        done = await session.apply(hide_repeated)
        print(f"apply: {done.tokens_before} -> {done.tokens_after} tokens, changed: {done.changed}")
        if done.changed:
            print(f"undo: {await session.undo()}, {await session.count()} tokens again")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compact a session with a strategy of one's own.")
    parser.add_argument("file", nargs="?", default=BUNDLED)
    parser.add_argument("--budget", type=int, default=30_000)
    options = parser.parse_args(argv)
    try:
        payload = kompakt.load(options.file).payload
        compacted(payload, options.budget)
        asyncio.run(stored(payload))
    except kompakt.KompaktError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
