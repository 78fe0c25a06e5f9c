"""Overhead of the gateway, and its throughput compared with other proxies: python -m benchmarks.gateway.

Overhead is the time of the gateway minus that of a minimal proxy (`benchmarks.passthrough`), alternating request by
request, on a history of 200,000 tokens that grows like that of an agent. Throughput is compared with the proxies of
LiteLLM and headroom, each installed into its own environment under `.venv-peers/gateway`; a peer that cannot be
installed is skipped.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rs_bpe.bpe import openai

from benchmarks.measurement import Row, save, show

ROOT = Path(__file__).parent.parent
VENVS = ROOT / ".venv-peers" / "gateway"
TOKENS = 200_000
PAIRS = int(os.environ.get("KOMPAKT_PAIRS", "400"))
WARM = 20
CONNECTIONS = 32
SECONDS, WARM_SECONDS = 8.0, 4.0
INSTALL, START = 600, 90
"""Time limit in seconds for installing and starting a peer."""
KEY = "sk-benchmark-0123456789abcdef0123456789abcdef"
HEADERS = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
PATH = "/v1/chat/completions"
PEERS = {"litellm": "litellm[proxy]", "headroom": "headroom-ai[proxy]"}
WORDS = [
    "queue",
    "index",
    "writer",
    "shard",
    "replica",
    "cache",
    "token",
    "retry",
    "schema",
    "parser",
    "module",
    "server",
    "limit",
    "total",
    "value",
]


class Timing(NamedTuple):
    """One request through both."""

    gateway: float
    bare: float
    compacted: bool

    @property
    def added(self) -> float:
        return self.gateway - self.bare


# --- histories ----------------------------------------------------------------------------------------------------


def rounds(number: int, *, size: int, start: int = 0) -> list[bytes]:
    """Make rounds of a call and its result, as bytes."""
    made: list[bytes] = []
    for at in range(start, start + number):
        dice = random.Random(at)
        text = "\n".join(f"{line}: {' '.join(dice.choices(WORDS, k=12))}" for line in range(size))
        function = {"name": "read", "arguments": json.dumps({"path": f"src/part_{at}.py"})}
        call = {"id": f"call_{at:05d}", "type": "function", "function": function}
        made.append(json.dumps({"role": "assistant", "content": f"Part {at}.", "tool_calls": [call]}).encode())
        made.append(json.dumps({"role": "tool", "tool_call_id": f"call_{at:05d}", "content": text}).encode())
    return made


def history(tokens: int, tag: str) -> list[bytes]:
    """Make a history of about that many tokens."""
    task = {"role": "user", "content": f"Find out why the queue stalls ({tag}). Never touch the migrations folder."}
    one = rounds(1, size=60)
    each = sum(int(openai.o200k_base().count(part.decode())) for part in one)
    return [json.dumps(task).encode(), *rounds(max(1, tokens // each), size=60)]


def body_of(items: Sequence[bytes]) -> bytes:
    """Write a request."""
    return b'{"model":"test-model","max_completion_tokens":500,"messages":[' + b",".join(items) + b"]}"


# --- processes ----------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def answers(port: int, path: str = "/", *, timeout: float = 1) -> bool:
    """Return whether a server responds."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        connection.request("GET", path)
        connection.getresponse().read()
        connection.close()
    except (OSError, http.client.HTTPException):
        return False
    return True


@contextmanager
def process(command: list[str], port: int, folder: Path, *, seconds: float = 30, **environ: str) -> Iterator[int]:
    """Run a server until the block ends.

    Raises:
        RuntimeError: it did not start; the message has the end of what it said.
    """
    log = folder / f"{port}.log"
    given = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), **environ}
    with log.open("wb") as out:
        running = subprocess.Popen(command, cwd=folder, env=given, stdout=out, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + seconds
        while not answers(port):
            if running.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"did not start within {seconds:g} s: {log.read_text(errors='replace')[-300:]!r}")
            time.sleep(0.1)
        yield port
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait(10)


def upstream(folder: Path) -> Any:
    port = free_port()
    return process([sys.executable, "-m", "benchmarks.upstream", str(port)], port, folder)


def bare(folder: Path, target: int) -> Any:
    port = free_port()
    code = (
        "import uvicorn; from benchmarks.passthrough import passing; "
        f"uvicorn.run(passing('http://127.0.0.1:{target}'), port={port}, log_level='critical')"
    )
    return process([sys.executable, "-c", code], port, folder)


def gateway(folder: Path, target: int, window: int) -> Any:
    port = free_port()
    store = f"sqlite:///{folder / f'{port}.db'}"
    command = [sys.executable, "-m", "kompakt", "serve", "--port", str(port), "--store", store]
    command += ["--upstream", f"openai=http://127.0.0.1:{target}", "--context-window", str(window)]
    return process(command, port, folder)


# --- overhead -----------------------------------------------------------------------------------------------------


class Line:
    """A persistent connection."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.connection.connect()
        self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, body: bytes) -> tuple[float, bool]:
        """Send a request; return the seconds until all of its answer was there, and whether it was compacted."""
        began = time.perf_counter()
        self.connection.request("POST", PATH, body, HEADERS)
        answer = self.connection.getresponse()
        answer.read()
        took = time.perf_counter() - began
        if answer.status != 200:
            raise RuntimeError(f"{answer.status} {answer.msg}")
        return took, answer.getheader("x-kompakt-compaction") is not None


def overhead(window: int, tag: str, *, pairs: int = PAIRS) -> list[Timing]:
    """Send a history that grows through both in turn."""
    found: list[Timing] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        target = stack.enter_context(upstream(folder))
        ours = Line(stack.enter_context(gateway(folder, target, window)))
        theirs = Line(stack.enter_context(bare(folder, target)))
        items, dice = history(TOKENS, tag), random.Random(7)
        for at in range(WARM + pairs):
            items += rounds(1, size=2, start=100_000 + at)
            body = body_of(items)
            if dice.random() < 0.5:
                (mine, compacted), (plain, _) = ours.ask(body), theirs.ask(body)
            else:
                (plain, _), (mine, compacted) = theirs.ask(body), ours.ask(body)
            if at >= WARM or compacted:
                found.append(Timing(mine, plain, compacted))
    return found


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def overhead_rows(name: str, found: list[Timing]) -> tuple[list[Row], dict[str, Any]]:
    """Return the overhead in milliseconds."""
    usual = [one for one in found if not one.compacted]
    ours, theirs = [one.gateway * 1_000 for one in usual], [one.bare * 1_000 for one in usual]
    added = [one.added * 1_000 for one in usual]
    middle = statistics.median(ours) - statistics.median(theirs)
    tail = quantile(ours, 0.99) - quantile(theirs, 0.99)
    rows = [
        Row(name=f"overhead, median, {name}", value=middle, unit="ms", at_most=2, note=f"{len(usual)} pairs in turn"),
        Row(name=f"overhead, 99 of 100, {name}", value=tail, unit="ms", at_most=20),
    ]
    due = [one.added * 1_000 for one in found if one.compacted]
    if due:
        note = f"{len(due)} times in {len(found)} requests"
        rows.append(Row(name=f"a request that is compacted, {name}", value=max(due), unit="ms", note=note))
    shares = (0.1, 0.5, 0.9, 0.99, 1.0)
    distributions = {
        kind: {f"p{share * 100:g}": round(quantile(values, share), 3) for share in shares}
        for kind, values in (("gateway", ours), ("bare", theirs), ("difference of each pair", added))
    }
    return rows, distributions


# --- throughput ---------------------------------------------------------------------------------------------------


class Session:
    """A conversation that grows by a round with each request, as bytes."""

    def __init__(self, tokens: int, number: int) -> None:
        self.number, self.at = number, 0
        self.items = b",".join(history(tokens, f"session {number}"))

    def next(self) -> bytes:
        """Return the next request."""
        self.at += 1
        self.items += b"," + b",".join(rounds(1, size=2, start=self.number * 10_000 + 500 + self.at))
        body = body_of([self.items])
        fields = {**HEADERS, "host": "127.0.0.1", "content-length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {PATH} HTTP/1.1\r\n{head}\r\n".encode() + body


async def _client(port: int, session: Session, end: float, counts: list[int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < end:
        writer.write(session.next())
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head[:80]!r} {(await reader.read(300))!r}")
        low = head.lower()
        if b"content-length:" in low:
            await reader.readexactly(int(low.split(b"content-length:")[1].split(b"\r\n")[0]))
        else:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                await reader.readexactly(size + 2)
            await reader.readuntil(b"\r\n")
        counts.append(1)
    writer.close()


async def _rate(port: int, sessions: Sequence[Session], seconds: float) -> tuple[float, int]:
    counts: list[int] = []
    began = time.monotonic()
    await asyncio.gather(*(_client(port, session, began + seconds, counts) for session in sessions))
    return len(counts) / (time.monotonic() - began), len(counts)


def served(target: int) -> int:
    """Return the number of requests of the upstream."""
    connection = http.client.HTTPConnection("127.0.0.1", target, timeout=10)
    connection.request("GET", "/count")
    found = int(connection.getresponse().read())
    connection.close()
    return found


def rate(port: int, target: int, tokens: int, *, seconds: float = SECONDS) -> float:
    """Return the requests served in a second, each of them by the upstream."""
    sessions = [Session(tokens, number) for number in range(CONNECTIONS)]
    asyncio.run(_rate(port, sessions, WARM_SECONDS))
    before = served(target)
    found, answered = asyncio.run(_rate(port, sessions, seconds))
    if served(target) - before < answered:
        raise RuntimeError(f"{answered} answers, of which the upstream gave {served(target) - before}")
    return found


def installed(name: str) -> Path:
    """Install a peer into its own environment, once.

    Raises:
        RuntimeError: that did not work in time.
    """
    folder = Path(os.environ.get("KOMPAKT_GATEWAY_PEERS", VENVS)) / name
    program = folder / "bin" / name
    if not program.exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
            pip = [str(folder / "bin" / "pip"), "--quiet", "--disable-pip-version-check", "install", PEERS[name]]
            subprocess.run(pip, check=True, timeout=INSTALL, capture_output=True)
        except (subprocess.SubprocessError, OSError) as error:
            raise RuntimeError(f"does not install: {error}") from None
    return program


@contextmanager
def peer(name: str, folder: Path, target: int) -> Iterator[int]:
    """Run the proxy of a peer as documented, with logging and limits turned off."""
    program, port = installed(name), free_port()
    home = {"HOME": str(folder), "HF_HUB_OFFLINE": "1"}
    if name == "litellm":
        config = folder / "litellm.yaml"
        model = {"model": "openai/test-model", "api_base": f"http://127.0.0.1:{target}/v1", "api_key": "local"}
        config.write_text(json.dumps({"model_list": [{"model_name": "test-model", "litellm_params": model}]}))
        command = [str(program), "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
        home |= {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    else:
        command = [str(program), "proxy", "--port", str(port), "--no-rate-limit"]
        command += ["--openai-api-url", f"http://127.0.0.1:{target}"]
        home |= {"HEADROOM_TELEMETRY": "off"}
    with process(command, port, folder, seconds=START, **home):
        yield port


def throughput() -> tuple[list[Row], dict[str, str]]:
    """Measure requests a second: short ones, and ones with an agent's history."""
    rows: list[Row] = []
    missing: dict[str, str] = {}
    for what, tokens in (("short requests", 200), ("20,000-token histories", 20_000)):
        rates: dict[str, float] = {}
        for name in ("kompakt", "bare", *PEERS):
            with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
                folder = Path(place)
                target = stack.enter_context(upstream(folder))
                try:
                    starting = {"kompakt": lambda f, t: gateway(f, t, 1_000_000), "bare": bare}.get(name)
                    made = starting(folder, target) if starting else peer(name, folder, target)
                    rates[name] = rate(stack.enter_context(made), target, tokens)
                except (RuntimeError, OSError, asyncio.IncompleteReadError) as error:
                    missing[f"{name}, {what}"] = str(error)[:300]
        for name, value in rates.items():
            label = {"bare": "a bare pass-through"}.get(name, name)
            rows.append(Row(name=f"{what}: {label}", value=value, unit="requests/s", peer=name != "kompakt"))
        rows += [
            Row(name=f"{what}: times {name}", value=rates["kompakt"] / rates[name], unit="×", at_least=5)
            for name in PEERS
            if name in rates and "kompakt" in rates
        ]
    return rows, missing


def measure() -> list[Row]:
    """Measure the overhead."""
    return [row for window, name in CASES for row in overhead_rows(name, overhead(window, name))[0]]


CASES = ((1_000_000, "nothing due"), (64_000, "substituted"))


def main() -> int:
    rows: list[Row] = []
    spreads: dict[str, Any] = {}
    for window, name in CASES:
        made, spreads[name] = overhead_rows(name, overhead(window, name))
        rows += made
    served, missing = throughput()
    rows += served
    show("gateway", rows)
    save("gateway", rows, milliseconds=spreads, not_measured=missing, tokens=TOKENS, connections=CONNECTIONS)
    print("\n".join(f"{name} was not measured: {reason}" for name, reason in missing.items()))
    return 1 if any(row.verdict == "MISSED" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
