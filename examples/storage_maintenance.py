"""Maintenance of a store: verify every session, compact those over a budget, and print a report.

    python examples/storage_maintenance.py agent.db --budget 50000
    python examples/storage_maintenance.py agent.db --budget 50000 --dry-run

Exits with 1 if a session is damaged or cannot fit. Agents may use the store meanwhile: compactions of one session wait
for each other, and each can be undone. Needs no model and no network.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import kompakt


async def tend(session: kompakt.Session, budget: int, *, dry_run: bool) -> tuple[str, bool]:
    """Verify and compact one session; return a report line and whether it is valid."""
    try:
        problems = await session.verify()
        if problems:
            return f"not as it should be: {'; '.join(problems)}", False
        tokens = await session.count()
        if dry_run or tokens <= budget:
            return f"{tokens} tokens{', over the budget' if tokens > budget else ''}", True
        done = await session.compact(budget)
    except kompakt.KompaktError as error:  # continue with the other sessions
        return f"{type(error).__name__}: {error}", False
    return f"{done.tokens_before} -> {done.tokens_after} tokens, compaction {done.id}", True


async def maintain(file: Path, budget: int, *, dry_run: bool) -> int:
    """Process all sessions; return the number of failures."""
    seen = bad = 0
    async with await kompakt.open_store(f"sqlite:///{file}") as store:
        async for session in store.sessions():
            line, is_well = await tend(session, budget, dry_run=dry_run)
            print(f"{session.id}: {line}")
            seen, bad = seen + 1, bad + (not is_well)
    print(f"{seen} sessions, {bad} with problems")
    return bad


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Verify and compact the sessions of an SQLite store.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--budget", type=int, default=100_000, help="tokens that a session may show to a model")
    parser.add_argument("--dry-run", action="store_true", help="change nothing")
    options = parser.parse_args(argv)
    if not options.file.is_file():
        parser.error(f"{options.file} is not there")
    try:
        return 1 if asyncio.run(maintain(options.file, options.budget, dry_run=options.dry_run)) else 0
    except kompakt.KompaktError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
