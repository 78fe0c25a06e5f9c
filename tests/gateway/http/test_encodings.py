"""Compressed request bodies: decoded within the body limit, else rejected in the provider's format."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import zstandard
from tests.gateway.gateway_server import Gate, gateway
from tests.gateway.payloads import FORMATS, HEADERS, PATHS, answering, history, request
from tests.gateway.upstreams import Upstream

from kompakt.gateway.http import encodings

LIMIT = 400_000


def _bare(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "members": ("gzip", lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:])),
    "deflate": ("deflate", zlib.compress),
    "bare deflate": ("deflate", _bare),
    "zstd": ("zstd", lambda data: zstandard.ZstdCompressor().compress(data)),
    "zstd stream": ("zstd", lambda data: (o := zstandard.ZstdCompressor().compressobj()).compress(data) + o.flush()),
    "both": ("gzip, zstd", lambda data: zstandard.ZstdCompressor().compress(gzip.compress(data))),
    "capitals": ("GZIP", gzip.compress),
}


class Stage:
    def __init__(self, upstream: Upstream, gate: Gate) -> None:
        self.upstream, self.gate = upstream, gate

    def post(self, format: str, content: bytes, encoding: str) -> httpx.Response:
        headers = {**HEADERS[format], "content-type": "application/json", "content-encoding": encoding}
        return httpx.post(self.gate.url + PATHS[format], content=content, headers=headers, timeout=120)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    store = f"sqlite:///{tmp_path_factory.mktemp('gateway') / 'k.db'}"
    with Upstream(answering) as upstream, gateway(upstream.url, store=store, max_body=LIMIT) as gate:
        yield Stage(upstream, gate)


def body_of(format: str, rounds: int, tag: str) -> bytes:
    return json.dumps(request(format, history(format, rounds, tag=tag))).encode()


class TestRead:
    @pytest.mark.parametrize("packer", PACKERS)
    def test_a_compressed_body_is_forwarded_uncompressed(self, stage: Stage, packer: str) -> None:
        encoding, pack = PACKERS[packer]
        body = body_of("openai-chat", 3, packer)
        answer = stage.post("openai-chat", pack(body), encoding)
        sent = stage.upstream.raw[-1]
        assert (answer.status_code, answer.headers["x-kompakt-outcome"]) == (200, "fits")
        assert sent.body == body and sent.header("content-encoding") is None
        assert sent.header("content-length") == str(len(body))

    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("packer", ["gzip", "zstd"])
    def test_a_compressed_long_history_is_compacted(self, stage: Stage, format: str, packer: str) -> None:
        encoding, pack = PACKERS[packer]
        answer = stage.post(format, pack(body_of(format, 60, packer)), encoding)
        assert (answer.status_code, answer.headers["x-kompakt-outcome"]) == (200, "compacted")

    def test_an_untouched_request_stays_compressed(self, stage: Stage) -> None:
        packed = gzip.compress(json.dumps({"model": "m", "input": "Only a text."}).encode())
        answer = stage.post("openai-responses", packed, "gzip")
        assert answer.headers["x-kompakt-untouched"] == "no-messages"
        assert stage.upstream.raw[-1].body == packed and stage.upstream.raw[-1].header("content-encoding") == "gzip"


BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "gzip": ("gzip", lambda: gzip.compress(bytes(5_000_000))),
    "members": ("gzip", lambda: gzip.compress(bytes(300_000)) * 100),
    "deflate": ("deflate", lambda: zlib.compress(bytes(5_000_000))),
    "zstd": ("zstd", lambda: zstandard.ZstdCompressor().compress(bytes(5_000_000))),
    "layers": ("gzip, gzip", lambda: gzip.compress(gzip.compress(bytes(20_000_000), 1))),
}


def _message(format: str, answer: httpx.Response) -> str:
    """Return the message of an error in the provider's format."""
    body: dict[str, Any] = answer.json()
    if format == "anthropic":
        assert body["type"] == "error" and body["error"]["type"]
    elif format == "gemini":
        assert body["error"]["code"] == answer.status_code and body["error"]["status"]
    else:
        assert body["error"]["type"] and "code" in body["error"]
    return body["error"]["message"]


class TestRefused:
    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("bomb", BOMBS)
    def test_a_body_over_the_limit_after_decompression(self, stage: Stage, format: str, bomb: str) -> None:
        encoding, make = BOMBS[bomb]
        asked = len(stage.upstream.raw)
        answer = stage.post(format, make(), encoding)
        assert answer.status_code == 413 and f"{LIMIT:,}" in _message(format, answer)
        assert answer.headers["x-kompakt-refusal"] == "body_too_large" and len(stage.upstream.raw) == asked

    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("encoding", ["br", "compress", "gzip, br", "gzip, gzip, gzip, gzip"])
    def test_an_unsupported_encoding(self, stage: Stage, format: str, encoding: str) -> None:
        answer = stage.post(format, b"{}", encoding)
        assert answer.status_code == 415 and "gzip" in _message(format, answer)
        assert answer.headers["accept-encoding"] == "deflate, gzip, zstd"

    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize(
        ("encoding", "content"),
        [
            ("gzip", b"no gzip at all"),
            ("gzip", gzip.compress(b"{}" * 100)[:-6]),
            ("gzip", gzip.compress(b"{}") + b"something else"),
            ("deflate", b"\xff\xff\xff"),
            ("zstd", b"no zstd at all"),
            ("zstd", zstandard.ZstdCompressor().compress(b'{"messages": [' * 50)[:-4]),
        ],
    )
    def test_a_body_that_does_not_match_its_encoding(
        self, stage: Stage, format: str, encoding: str, content: bytes
    ) -> None:
        answer = stage.post(format, content, encoding)
        assert answer.status_code == 400 and _message(format, answer)


def test_without_zstandard_the_encoding_is_unsupported(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer names encodings that work; the log names once what to install."""
    monkeypatch.setattr(encodings, "REQUESTS", encodings.REQUESTS - {"zstd"})
    encodings._log_missing_zstandard.cache_clear()
    for _ in range(2):
        answer = stage.post("openai-chat", b"x", "zstd")
        assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "deflate, gzip")
        assert _message("openai-chat", answer) == (
            "content-encoding 'zstd' is not supported; use one of deflate, gzip, or none"
        )
    assert caplog.text.count("needs zstandard") == 1


def test_the_limit_is_exact() -> None:
    """A body of exactly the limit is read."""
    for name, (encoding, pack) in PACKERS.items():
        applied = encodings.listed(encoding)
        assert encodings.decode(pack(b"x" * 500), applied, 500) == b"x" * 500, name
        with pytest.raises(encodings.TooLong):
            encodings.decode(pack(b"x" * 501), applied, 500)
