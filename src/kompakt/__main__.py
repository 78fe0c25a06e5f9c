"""``python -m kompakt``: the command line where its script is not on the path."""

from __future__ import annotations

from kompakt.cli import main

if __name__ == "__main__":
    main()
