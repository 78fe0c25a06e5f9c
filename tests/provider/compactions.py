"""Compactions by the provider: on request or above a size. It recognizes them when they are sent back.

OpenAI: ``/responses/compact`` and ``context_management`` (section 2b). Anthropic: on demand, at a threshold, and the
clearing of tool outputs (section 3c). What was not given out here is refused, and so is a beta without its header.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from openai.types.responses.response_compact_params import ResponseCompactParams
from tests.judges.anthropic_shapes import blocks_of
from tests.judges.openai_responses import type_of
from tests.provider.answer import Body, Refusal, Seen
from tests.provider.frames import joined

ON_DEMAND, THRESHOLD, EDITING = "compact-2026-09-04", "compact-2026-01-12", "context-management-2025-06-27"
MIN_THRESHOLD = {"openai-responses": 1_000, "anthropic": 50_000}
KEYS = set(ResponseCompactParams.__annotations__)
KEPT_TOOL_USES = 3
CLEARED = "[cleared]"


@dataclass(frozen=True)
class Managed:
    """What a request allows the provider to do automatically."""

    kind: str
    tokens: int


def is_asked(path: str, body: Any) -> bool:
    """Say whether a request wants a compaction and nothing else."""
    return path.endswith("/responses/compact") or (isinstance(body, dict) and body.get("compaction") is not None)


def faults(format: str, path: str, body: Body, headers: dict[str, str]) -> Iterator[str]:
    """Yield the faults of a compaction request, or of a compaction that is sent back."""
    if path.endswith("/responses/compact"):
        yield from (f"BODY {key}: unknown parameter" for key in sorted(body.keys() - KEYS))
    if format == "anthropic":
        yield from _anthropic_faults(body, headers.get("anthropic-beta", "").split(","))
    for one in managed(format, body):
        if one.tokens < MIN_THRESHOLD.get(format, 0) and one.kind == "compaction":
            yield f"BODY context_management: {one.tokens} tokens are fewer than {MIN_THRESHOLD[format]}"


def _anthropic_faults(body: Body, betas: list[str]) -> Iterator[str]:
    kinds = [str(edit.get("type")) for edit in (body.get("context_management") or {}).get("edits") or []]
    blocks = [block for message in body.get("messages") or [] for block in blocks_of(message)]
    compactions = [block for block in blocks if block.get("type") == "compaction"]
    if body.get("compaction") is not None:
        if ON_DEMAND not in betas:
            yield f"BODY compaction: requires anthropic-beta: {ON_DEMAND}"
        if body["compaction"].get("type") != "summarize" or body["compaction"].keys() - {"type", "instructions"}:
            yield "BODY compaction: expected type summarize, and instructions"
        yield from (
            f"BODY {key}: may not be combined with compaction"
            for key in ("context_management", "stop_sequences")
            if key in body
        )
    if any(block.get("signature") for block in compactions) and ON_DEMAND not in betas:
        yield "AN-25 messages: 'compaction' is not one of the expected content block types"
    if any(not block.get("signature") for block in compactions) and THRESHOLD not in betas:
        yield "AN-25 messages: 'compaction' is not one of the expected content block types"
    if "compact_20260112" in kinds and THRESHOLD not in betas:
        yield f"BODY context_management: requires anthropic-beta: {THRESHOLD}"
    if any(kind.startswith("clear_") for kind in kinds) and EDITING not in betas:
        yield f"BODY context_management: requires anthropic-beta: {EDITING}"
    if "compact_20260112" in kinds and any(block.get("signature") for block in compactions):
        yield "BODY context_management: a signed compaction block is there already"


def managed(format: str, body: Body) -> list[Managed]:
    """List what a request allows the provider to do automatically."""
    settings = body.get("context_management")
    if format == "openai-responses":
        return [Managed("compaction", one.get("compact_threshold") or 0) for one in settings or []]
    if format != "anthropic" or not settings:
        return []
    kinds = {"compact_20260112": ("compaction", 150_000), "clear_tool_uses_20250919": ("clearing", 100_000)}
    found = []
    for edit in settings.get("edits") or []:
        kind, default = kinds.get(edit.get("type"), ("", 0))
        found.append(Managed(kind, (edit.get("trigger") or {}).get("value", default)))
    return found


class Compactor:
    """Gives out compactions and knows them again."""

    def __init__(self) -> None:
        self.issued: dict[str, str] = {}
        self.made: list[str] = []
        """How each was asked for: demand, threshold, clearing."""

    def refusal(self, seen: Seen) -> Refusal | None:
        """Return why a request with a compaction is rejected, or ``None``."""
        for item in seen.items:
            if seen.format == "openai-responses" and type_of(item) == "compaction":
                blob = item["encrypted_content"]
                if blob not in self.issued:
                    text = f"The encrypted content {blob[:4]}... could not be verified. (OR-6)"
                    return Refusal(400, "invalid_encrypted_content", text, "input")
            for block in blocks_of(item) if seen.format == "anthropic" else []:
                if block["type"] == "compaction" and block.get("content") is not None:
                    mark = block.get("signature") or block.get("encrypted_content") or ""
                    if mark not in self.issued:
                        return Refusal(400, "invalid_request_error", "compaction_signature_invalid")
                    if self.issued[mark] != block["content"]:
                        return Refusal(400, "invalid_request_error", "compaction_content_mismatch")
        return None

    def read(self, seen: Seen) -> list[Any]:
        """Return the messages that the model reads: from the newest compaction on, but for a signed one's tail."""
        newest = [at for at, item in enumerate(seen.items) if _holds(item, seen.format)]
        return seen.items[newest[-1] :] if newest and seen.format == "anthropic" else seen.items

    def summary(self, seen: Seen, how: str) -> tuple[str, str]:
        """Make a compaction: what can be read of it, and the mark by which it is known again."""
        self.made.append(how)
        text = f"Summary {len(self.made)} of {len(seen.items)} messages."
        mark = "cmp-" + sha256(f"{len(self.issued)}/{text}".encode()).hexdigest()
        self.issued[mark] = text
        return text, mark

    def cleared(self, items: list[Any]) -> list[Any]:
        """Hide the outputs of all tool uses but the newest."""
        uses = [b["id"] for message in items for b in blocks_of(message) if b["type"] == "tool_use"][:-KEPT_TOOL_USES]
        return [{**m, "content": [_cleared(block, uses) for block in blocks_of(m)]} for m in items]

    def answer(self, seen: Seen, number: int, usage: Body, text: str, mark: str) -> Body:
        """Return the item that replaces all that was sent, in the format of the interface."""
        if seen.format == "anthropic":
            block = {"type": "compaction", "content": text, "signature": mark}
            made = {
                **{key: 0 for key in usage if isinstance(usage[key], int)},
                "iterations": [{"type": "compaction", **usage}],
            }
            head = {"id": f"msg_{number:06d}", "type": "message", "role": "assistant", "model": seen.model}
            return {**head, "content": [block], "stop_reason": "compaction", "stop_sequence": None, "usage": made}
        users = [item for item in seen.items if type_of(item) == "message" and item["role"] == "user"]
        kept: list[Body] = [
            {
                "id": f"msg_{number:06d}_{at}",
                "type": "message",
                "status": "completed",
                "role": "user",
                "content": [{"type": "input_text", "text": joined(item["content"])}],
            }
            for at, item in enumerate(users)
        ]
        item = {"id": f"cmp_{number:06d}", "type": "compaction", "encrypted_content": mark}
        head = {"id": f"resp_{number:06d}", "object": "response.compaction", "created_at": 1_790_000_000}
        return {**head, "output": [*kept, item], "usage": usage}


def _holds(item: Any, format: str) -> bool:
    if format == "openai-responses":
        return type_of(item) == "compaction"
    return format == "anthropic" and any(
        block["type"] == "compaction" and block.get("content") is not None for block in blocks_of(item)
    )


def _cleared(block: Body, uses: list[str]) -> Body:
    gone = block.get("type") == "tool_result" and block.get("tool_use_id") in uses
    return {**block, "content": CLEARED} if gone else block
