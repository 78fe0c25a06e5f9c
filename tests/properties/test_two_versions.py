"""Both pinned versions of mistral-common agree with `check --strict` and accept what `repair` and `compact` give."""

from __future__ import annotations

from typing import Any

from tests.histories import plain
from tests.histories.broken import BROKEN, FORMAT_OF
from tests.judges.mistral_1_11 import judge_all
from tests.judges.openai_chat import judge_mistral

import kompakt

FAULTS_OF_PAIRING = ("OC-1", "OC-2", "OC-3", "MI-1", "MI-3", "MI-4", "MI-5", "MI-6")
"""What the older version looks at; roles and contents that it cannot even read are left to the newer one."""


def plain_chat(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop what the judge cannot parse: older function messages and developer roles."""
    return [
        {**message, "role": "system" if message["role"] == "developer" else message["role"]} for message in messages
    ]


def long_bodies() -> list[dict[str, Any]]:
    return [plain.build("openai-chat", messages=20 + 7 * seed, seed=seed, parallel=1 + seed % 4) for seed in range(12)]


class TestBothVersions:
    def test_accept_long_sessions_before_and_after_compaction(self) -> None:
        """Whole and compacted, after strict repair: ids of nine characters, a bridge from tool to user."""
        given = long_bodies()
        compacted = [kompakt.compact(body, max(400, kompakt.count(body).total // 3)).payload for body in given]
        repaired = [kompakt.repair(body, strict=True) for body in (*given, *compacted)]
        assert [one.remaining for one in repaired] == [()] * len(repaired)
        histories = [plain_chat(one.payload["messages"]) for one in repaired]
        assert judge_all(histories) == [[]] * len(histories)
        assert [judge_mistral(history) for history in histories] == [[]] * len(histories)

    def test_reject_every_pairing_fault_and_accept_its_repair(self) -> None:
        """The judges reject what check reports, and accept the result of repair."""
        cases = [body for code in FAULTS_OF_PAIRING if FORMAT_OF[code[:2]] == "openai-chat" for _, body in BROKEN[code]]
        cases = [body for body in cases if not any(m["role"] in ("function",) for m in body["messages"])]
        verdicts = judge_all([plain_chat(body["messages"]) for body in cases])
        assert [bool(verdict) for verdict in verdicts] == [True] * len(cases)
        assert all(kompakt.check(body, "openai-chat", strict=True) for body in cases)
        repaired = [kompakt.repair(body, "openai-chat", strict=True).payload["messages"] for body in cases]
        assert judge_all([plain_chat(messages) for messages in repaired]) == [[]] * len(repaired)
