"""The program of a local worker process: ``python -m kompakt.fleet.worker``."""

from __future__ import annotations

from kompakt.fleet.local import serve

if __name__ == "__main__":
    serve()
