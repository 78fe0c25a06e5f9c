"""The media limit: a compaction hides older media; newer media over the limit is rejected."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.gateway_server import gateway
from tests.gateway.payloads import FORMATS, HEADERS, PATHS, answering, history, request
from tests.gateway.upstreams import Upstream

from kompakt.gateway.request.history import media_bytes

DATA = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(30_000)).decode()
SIZE = 30_008
LIMIT = 50_000


def picture(format: str) -> Any:
    """Return a user message with an image."""
    url = f"data:image/png;base64,{DATA}"
    if format == "openai-chat":
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    if format == "openai-responses":
        return {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    if format == "anthropic":
        source = {"type": "base64", "media_type": "image/png", "data": DATA}
        return {"role": "user", "content": [{"type": "image", "source": source}]}
    return {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": DATA}}]}


def said(format: str, text: str) -> Any:
    """Return a model answer."""
    if format == "gemini":
        return {"role": "model", "parts": [{"text": text}]}
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("format", FORMATS)
class TestLimit:
    def test_decoded_bytes_are_counted(self, format: str) -> None:
        """After base64 decoding, in every format."""
        body = request(format, [*history(format, 1), picture(format), said(format, "Seen."), picture(format)])
        assert abs(media_bytes(_bytes(body), format) - 2 * SIZE) <= 6

    def test_media_within_the_limit_passes(self, format: str, tmp_path: Path) -> None:
        with (
            Upstream(answering) as upstream,
            gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}", max_media=LIMIT) as gate,
        ):
            body = _bytes(request(format, [picture(format)]))
            answer = httpx.post(gate.url + PATHS[format], content=body, headers=HEADERS[format], timeout=120)
            assert answer.status_code == 200 and upstream.raw[-1].body == body

    def test_too_much_media_in_the_newest_message_is_rejected(self, format: str, tmp_path: Path) -> None:
        """The error has the number and the setting, in the provider's format."""
        with (
            Upstream(answering) as upstream,
            gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}", max_media=SIZE // 2) as gate,
        ):
            body = _bytes(request(format, [picture(format)]))
            answer = httpx.post(gate.url + PATHS[format], content=body, headers=HEADERS[format], timeout=120)
            assert (answer.status_code, answer.headers["x-kompakt-refusal"]) == (413, "media_too_large")
            assert "--max-media allows 15,004" in answer.json()["error"]["message"] and upstream.raw == []

    def test_older_images_are_hidden_first(self, format: str, tmp_path: Path) -> None:
        """An agent that sends many screenshots can continue."""
        items = history(format, 1)
        for at in range(4):
            items += [picture(format), said(format, f"Seen {at}.")]
        items.append(picture(format))
        with (
            Upstream(answering) as upstream,
            gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}", max_media=LIMIT) as gate,
        ):
            body = _bytes(request(format, items))
            answer = httpx.post(gate.url + PATHS[format], content=body, headers=HEADERS[format], timeout=120)
            assert answer.status_code == 200, answer.text
            assert 0 < media_bytes(upstream.raw[-1].body, format) <= LIMIT


def _bytes(body: dict[str, Any]) -> bytes:
    return httpx.Request("POST", "http://x", json=body).read()
