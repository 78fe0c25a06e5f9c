"""Two running gateways on one store: the cache of one never hides a newer pivot of the other."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from tests.gateway.gateway_server import gateway
from tests.gateway.payloads import FORMATS, HEADERS, PATHS, answering, history, request
from tests.gateway.upstreams import Upstream


def sent(format: str, stride: int, folder: Path, *, gateways: int) -> list[bytes]:
    """Send a growing session through the gateways in turn; return the upstream requests."""
    folder.mkdir()
    store = f"sqlite:///{folder / 'k.db'}"
    with Upstream(answering) as upstream, ExitStack() as stack:
        gates = [stack.enter_context(gateway(upstream.url, store=store)) for _ in range(gateways)]
        for at, rounds in enumerate(range(6, 46, stride)):
            body = json.dumps(request(format, history(format, rounds, size=60, tag="turns")))
            url = gates[at % gateways].url + PATHS[format]
            assert httpx.post(url, content=body, headers=HEADERS[format], timeout=120).status_code == 200
        return [raw.body for raw in upstream.raw]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("stride", [3, 4])
def test_requests_in_turn_are_sent_as_from_one(format: str, stride: int, tmp_path: Path) -> None:
    alone = sent(format, stride, tmp_path / "alone", gateways=1)
    both = sent(format, stride, tmp_path / "both", gateways=2)
    differ = [at for at, (one, two) in enumerate(zip(alone, both, strict=True)) if one != two]
    assert differ == []
