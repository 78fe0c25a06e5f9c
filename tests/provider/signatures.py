"""Signatures of reasoning: sent with an answer, checked when the client sends them back.

Anthropic binds a block to everything before it (AN-13 to AN-15), Gemini to its own call (GE-5), OpenAI to nothing
that can be seen (OR-6). A signature that was never given out is refused everywhere.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from tests.judges.anthropic_shapes import blocks_of
from tests.judges.openai_responses import type_of
from tests.provider.answer import Answer, Body, Refusal, Seen

BINDING_MODELS = re.compile(r"claude-(fable-5-[1-9]|opus-5-5)")
SENTINELS = {"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"}
CONTROLS = "thinking-binding-controls-2026-08-01"


class Place(NamedTuple):
    """A thinking block, its path, a digest of all before it but thinking, and the signatures before it."""

    path: str
    block: Body | None
    prefix: str
    before: tuple[str, ...]


@dataclass(frozen=True)
class Issued:
    """What a signature was given out for."""

    content: str
    prefix: str = ""
    before: tuple[str, ...] = ()


class Signer:
    """Gives out signatures and knows them again."""

    def __init__(self, *, binds: bool | None = None) -> None:
        self.binds = binds
        self.issued: dict[str, Issued] = {}

    def sign(self, seen: Seen, answer: Answer) -> str:
        """Return a signature for the thinking of an answer; empty when there is nothing to sign."""
        signs = answer.thinking or (answer.calls and seen.format == "gemini" and "gemini-3" in seen.model)
        if not signs:
            return ""
        digest = sha256(f"{len(self.issued)}/{answer.thinking}".encode()).hexdigest()[:48]
        signature = base64.b64encode(digest.encode()).decode()
        if seen.format == "anthropic":
            end = list(_places(seen))[-1]
            self.issued[signature] = Issued(answer.thinking, end.prefix, end.before)
        elif seen.format == "gemini":
            call = answer.calls[0] if answer.calls else None
            self.issued[signature] = Issued(_text([call.name, call.arguments]) if call else "")
        else:
            self.issued[signature] = Issued(answer.thinking)
        return signature

    def refusal(self, seen: Seen, body: Body, headers: dict[str, str]) -> Refusal | None:
        """Say why a request with signed content is not taken, if it is not."""
        checks = {"anthropic": self._anthropic, "gemini": self._gemini, "openai-responses": self._responses}
        check = checks.get(seen.format)
        return next(check(seen, body, headers), None) if check else None

    def _anthropic(self, seen: Seen, body: Body, headers: dict[str, str]) -> Iterator[Refusal]:
        binding = (body.get("thinking") or {}).get("block_binding")
        if binding and CONTROLS not in headers.get("anthropic-beta", ""):
            yield _invalid(f"thinking.block_binding requires the `{CONTROLS}` value in the `anthropic-beta` header.")
        drops = (binding or {}).get("prefix_mismatch_behavior") == "drop_block"
        binds = bool(BINDING_MODELS.match(seen.model)) if self.binds is None else self.binds
        for place in _places(seen):
            if place.block is None:
                continue
            known = self.issued.get(place.block.get("signature", ""))
            if known is None or known.content != place.block.get("thinking"):
                yield _invalid(f"{place.path}: Invalid `signature` in `thinking` block (AN-13)")
            elif binds and not drops and not _holds(place, known):
                yield _invalid(
                    f"{place.path}: Invalid `signature` in `thinking` block. The block is bound to a different "
                    "conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "
                    '"drop_block". (AN-14)'
                )

    def _gemini(self, seen: Seen, body: Body, headers: dict[str, str]) -> Iterator[Refusal]:
        for index, content in enumerate(seen.items):
            for part in content["parts"]:
                signature = part.get("thoughtSignature")
                if signature is None or signature in SENTINELS or _decoded(signature) in SENTINELS:
                    continue
                known = self.issued.get(signature)
                call = part.get("functionCall")
                if known is None or (call and known.content != _text([call["name"], call.get("args") or {}])):
                    yield Refusal(400, "INVALID_ARGUMENT", f"Thought signature is not valid: contents[{index}] (GE-5)")

    def _responses(self, seen: Seen, body: Body, headers: dict[str, str]) -> Iterator[Refusal]:
        for item in seen.items:
            blob = item.get("encrypted_content") if type_of(item) == "reasoning" else None
            if blob and blob not in self.issued:
                text = f"The encrypted content {blob[:4]}...{blob[-4:]} could not be verified. (OR-6)"
                yield Refusal(400, "invalid_encrypted_content", text, "input")


def _invalid(text: str) -> Refusal:
    return Refusal(400, "invalid_request_error", text)


def _holds(place: Place, known: Issued) -> bool:
    """The prefix is unchanged, and of the earlier thinking only the oldest was removed (AN-15)."""
    kept = len(place.before)
    return (
        place.prefix == known.prefix
        and kept <= len(known.before)
        and place.before == known.before[len(known.before) - kept :]
    )


def _places(seen: Seen) -> Iterator[Place]:
    """Iterate over the blocks of a request; the last place is that of the answer."""
    passed = sha256(_text([unmarked(seen.system), unmarked(seen.raw_tools)]).encode())
    before: list[str] = []
    for index, message in enumerate(seen.items):
        passed.update(f"\n{message['role']}:".encode())
        for at, block in enumerate(blocks_of(message)):
            if block["type"] in ("thinking", "redacted_thinking"):
                yield Place(f"messages.{index}.content.{at}", block, passed.hexdigest(), tuple(before))
                before.append(block.get("signature", ""))
            else:
                passed.update(_text(unmarked(block)).encode())
    passed.update(b"\nassistant:")
    yield Place("", None, passed.hexdigest(), tuple(before))


def unmarked(value: Any) -> Any:
    """Return a value without its cache marks."""
    if isinstance(value, list):
        return [unmarked(item) for item in value]
    if isinstance(value, dict):
        return {key: unmarked(inner) for key, inner in value.items() if key != "cache_control"}
    return value


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _decoded(signature: str) -> str:
    try:
        return base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4)).decode("ascii")
    except ValueError:
        return ""
