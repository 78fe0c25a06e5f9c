"""The public API: every name in ``kompakt.__all__`` with its signature.

Run ``python -m tests.golden.test_api`` to update it after an intended change, and add the change to the changelog.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import kompakt

RELEASED = Path(__file__).with_name("released_api.json")


def described() -> dict[str, object]:
    """Describe every public name: functions by signature, classes by their public members."""
    return {name: _described(getattr(kompakt, name)) for name in kompakt.__all__ if name != "__version__"}


def _described(value: object) -> object:
    if inspect.isclass(value):
        members = {name: _described(member) for name, member in vars(value).items() if not name.startswith("_")}
        return {"class": _signature(value), "members": dict(sorted(members.items()))}
    if callable(value):
        return _signature(value)
    return type(value).__name__


def _signature(value: object) -> str:
    try:
        signature = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return type(value).__name__
    return re.sub(r"\bkompakt(?:\.[a-z_0-9]+)+\.(?=[A-Z])", "", signature)  # where a class is defined may change


def test_the_public_api_is_the_released_one() -> None:
    """Names, parameters and defaults stay; an addition is written down here too."""
    assert described() == json.loads(RELEASED.read_text())


if __name__ == "__main__":
    RELEASED.write_text(json.dumps(described(), indent=1) + "\n")
