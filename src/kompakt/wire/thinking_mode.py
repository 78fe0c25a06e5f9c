"""What a request says about thinking, as Anthropic and Bedrock spell it."""

from __future__ import annotations

from typing import cast

from kompakt.model.messages import JsonObject


def thinks_by_hand(body: JsonObject | None) -> bool:
    """Tell whether a request turns thinking on by hand, so that an open round cannot go on without its own."""
    fields: object = (body or {}).get("additionalModelRequestFields")
    holders = [body or {}, cast("JsonObject", fields) if isinstance(fields, dict) else {}]
    thinking = [holder.get("thinking") for holder in holders]
    return any(isinstance(one, dict) and cast("JsonObject", one).get("type") == "enabled" for one in thinking)
