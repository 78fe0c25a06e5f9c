"""What a hook does about an event. Imported at every call of a hook, so it imports nothing."""

from __future__ import annotations

TYPE_CHECKING = False  # the module typing takes 10 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable


class HookResponse:
    """What a hook prints, and work that follows when the agent has its answer."""

    __slots__ = ("after", "text")

    def __init__(self, text: str = "", after: Callable[[], object] | None = None) -> None:
        self.text = text
        self.after = after
