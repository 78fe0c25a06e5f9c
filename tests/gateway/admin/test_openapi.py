"""The session API matches its OpenAPI document, checked with schemathesis."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.gateway.gateway_server import KEYS, gateway, hashed
from tests.gateway.payloads import HEADERS, PATHS, answering, history, request
from tests.gateway.upstreams import Upstream

KEY = next(iter(KEYS))


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_api_matches_its_document(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'k.db'}"
    with Upstream(answering) as upstream, gateway(upstream.url, store=store, keys=hashed(KEYS)) as gate:
        for at in range(3):
            body = request("openai-chat", history("openai-chat", 5, tag=f"s{at}"))
            headers = {**HEADERS["openai-chat"], "x-kompakt-key": KEY, "x-kompakt-session": f"{at}"}
            assert httpx.post(gate.url + PATHS["openai-chat"], json=body, headers=headers).status_code == 200
        asked = len(upstream.raw)
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{gate.url}/kompakt/openapi.json"]
        command += ["-H", f"x-kompakt-key: {KEY}", "--max-examples", "25", "--seed", "1", "--no-color"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-1_000:]
        assert len(upstream.raw) == asked  # nothing of it went to the provider
