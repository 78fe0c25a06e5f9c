"""A compaction that comes off: where a budget lies below the floor, the floor and a little more is the budget.

For measures of what survives, not of what fits: a chain or an attack whose budget cannot be kept would say nothing.
"""

from __future__ import annotations

from kompakt import api
from kompakt.errors import DoesNotFit
from kompakt.model.messages import History

MARGIN = 1.1


def compacted(history: History, budget: int, policy: str) -> api.Compaction:
    """Compact within a budget, or within a little more than what must stay.

    Raises:
        DoesNotFit: not even that is enough.
    """
    try:
        return api.compact(history, budget=budget, policy=policy)
    except DoesNotFit as error:
        return api.compact(history, budget=int(error.floor * MARGIN) + 1, policy=policy)
