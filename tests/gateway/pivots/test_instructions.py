"""System messages inside the conversation, as Claude Code sends them to newer models, through the gateway."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
from tests.engine.compaction.test_instructions import RULE, session
from tests.gateway.gateway_server import gateway
from tests.gateway.payloads import HEADERS, PATHS, answering
from tests.gateway.upstreams import Upstream
from tests.judges import judge

STEPS = 120


def test_copies_do_not_pile_up(tmp_path: Path) -> None:
    """After many steps the provider still gets each of them once before the newest messages."""
    with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
        for rounds in range(10, STEPS + 1, 10):
            body = json.dumps(session(rounds)).encode()
            answer = httpx.post(gate.url + PATHS["anthropic"], content=body, headers=HEADERS["anthropic"], timeout=120)
            assert answer.status_code == 200
    for raw in upstream.raw[3:]:
        assert judge("anthropic", raw.json) == []
        items = raw.json["messages"]
        users = json.dumps([item for item in items if item["role"] == "user"])
        assert "total_tokens" not in users and RULE not in users
        results = sum("tool_result" in json.dumps(item) for item in items)
        copies = json.dumps(items).count("<total_tokens>")
        assert copies <= results + 1 and RULE in json.dumps(items)
