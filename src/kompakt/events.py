"""The events that ``Agent.stream`` yields; the last is the ``Result`` that ``Agent.run`` returns."""

from kompakt.agent.events import (
    Answered,
    Called,
    Compacted,
    Recovered,
    Result,
    RunEvent,
    Spoke,
    Stepped,
    Thought,
)

__all__ = ["Answered", "Called", "Compacted", "Recovered", "Result", "RunEvent", "Spoke", "Stepped", "Thought"]
