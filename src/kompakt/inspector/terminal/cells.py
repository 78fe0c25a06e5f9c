"""Numbers and recorded text as cells of a terminal. Recorded text is never read as markup.

Every cell is a ``Text``: widgets and tables read a plain ``str`` as markup.
"""

from __future__ import annotations

from rich.cells import set_cell_size
from rich.text import Text

from kompakt.view.visible import cleaned

_FULL, _EMPTY = "█", "░"
_PARTS = " ▏▎▍▌▋▊▉"

NEARLY_FULL = 0.8
"""Share of a window from which a bar is red."""


def block(text: str) -> Text:
    """Return recorded text with its lines, as plain characters."""
    return Text(cleaned(text).expandtabs(4))


def line(text: str, width: int | None = None) -> Text:
    """Return recorded text as one line of at most ``width`` columns."""
    plain = " ".join(cleaned(text if width is None else text[: 8 * width]).split())
    found = Text(plain, no_wrap=True)
    if width is not None and found.cell_len > width:
        found = Text(set_cell_size(plain, max(0, width - 1)).rstrip() + "…", no_wrap=True)
    return found


def number(value: float | None) -> Text:
    """Return a number with separators; ``-`` when it is unknown."""
    return Text("-" if value is None else f"{value:,.0f}", justify="right", no_wrap=True)


def short(value: float | None) -> str:
    """Return a number in at most five characters: ``950``, ``12.3k``, ``200k``, ``1.2M``."""
    if value is None:
        return "-"
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if abs(value) >= size:
            scaled = value / size
            return f"{scaled:.0f}{unit}" if abs(scaled) >= 99.95 else f"{scaled:.1f}{unit}".replace(f".0{unit}", unit)
    return f"{value:.0f}"


def brief(value: float | None) -> Text:
    """Return ``short`` as a cell."""
    return Text(short(value), justify="right", no_wrap=True)


def money(value: float | None) -> Text:
    """Return an amount in dollars; ``-`` when it is unknown."""
    return Text("-" if value is None else f"${value:,.2f}", justify="right", no_wrap=True)


def share(value: float | None) -> Text:
    """Return a share as a percentage; ``-`` when it is unknown."""
    return Text("-" if value is None else f"{value:.0%}", justify="right", no_wrap=True)


def moment(at: str | None) -> Text:
    """Return month, day and time of an ISO timestamp; ``-`` when it is unknown."""
    shown = cleaned(at[:25]) if at else ""
    return Text(shown[5:16].replace("T", " ") or "-", no_wrap=True)


def strip(share: float | None, width: int) -> str:
    """Return a horizontal bar of ``width`` columns."""
    eighths = round(min(1.0, max(0.0, share or 0.0)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return (_FULL * whole + (_PARTS[rest] if rest else "")).ljust(width, _EMPTY)


def fullness(share: float | None, width: int = 8) -> Text:
    """Return a bar with a percentage; its colour warns before the window is full."""
    if share is None:
        return Text("-".rjust(width + 5), no_wrap=True)
    style = "red" if share >= NEARLY_FULL else "yellow" if share >= 0.5 else "green"
    return Text(no_wrap=True).append(strip(share, width), style).append(f"{min(share, 9.99):5.0%}")


def part(tokens: int, total: int, width: int = 6) -> Text:
    """Return the share of a total as a bar with a percentage."""
    share = tokens / total if total else 0.0
    return Text(no_wrap=True).append(strip(share, width).replace(_EMPTY, " "), "cyan").append(f"{share:4.0%}")
