"""``kompakt serve --workers``: several processes on one port behave like one gateway."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.contract.postgres import database
from tests.contract.redis import shared
from tests.gateway.gateway_server import ROOT, Replica, gateway, replica
from tests.gateway.payloads import HEADERS, PATHS, STREAMED, answering, events, history, request
from tests.gateway.upstreams import Raw, Reply, Upstream, wait_for

from kompakt.errors import UsageError
from kompakt.gateway import workers
from kompakt.gateway.config import GatewayConfig
from kompakt.gateway.workers import Supervisor, WorkerAssignment, WorkerChannel

pytestmark = pytest.mark.xdist_group("workers")

FORMAT = "openai-chat"


def store_url(kind: str) -> str:
    """Create an empty store on a server."""
    return database() if kind == "postgres" else f"{shared().url}?prefix=workers-{os.urandom(4).hex()}"


@contextmanager
def two_workers(upstream: str, folder: Path, *, store: str) -> Generator[Replica]:
    with replica(upstream, store=store, folder=folder, flags=("--workers", "2", "--log-json")) as gate:
        yield gate


def records(gate: Replica) -> list[dict[str, Any]]:
    """Read the log of all processes."""
    return [json.loads(line) for line in gate.log.read_text().splitlines() if line.startswith("{")]


def worker_pids(gate: Replica) -> set[int]:
    """Return the running workers of a gateway."""
    children = Path(f"/proc/{gate.process.pid}/task/{gate.process.pid}/children").read_text()
    return {int(pid) for pid in children.split()}


def bodies(tag: str) -> list[bytes]:
    """Return the requests of one session that grows beyond its window."""
    return [
        json.dumps(request(FORMAT, history(FORMAT, rounds, size=60, tag=tag))).encode() for rounds in range(6, 46, 5)
    ]


def post(gate: Any, body: bytes, client: Any = httpx) -> httpx.Response:
    headers = {"content-type": "application/json", **HEADERS[FORMAT]}
    return client.post(gate.url + PATHS[FORMAT], content=body, headers=headers, timeout=120)


def sent_by_one(tag: str, folder: Path) -> list[bytes]:
    """Return what a single gateway with its own store sends upstream."""
    with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{folder / 'one.db'}") as gate:
        for body in bodies(tag):
            assert post(gate, body).status_code == 200
        return [raw.body for raw in upstream.raw]


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_workers_send_the_same_bytes_as_one_gateway(kind: str, tmp_path: Path) -> None:
    """Consecutive requests of a session go to different workers, and one worker is killed in the middle of a stream."""
    hold, chunks, at = threading.Event(), events(FORMAT), 5
    expected = sent_by_one("shared", tmp_path)

    def plan(raw: Raw) -> Reply:
        if json.loads(raw.body).get("stream"):
            return Reply(chunks, 200, {"content-type": "text/event-stream"}, [hold])
        return answering(raw)

    with Upstream(plan) as upstream, two_workers(upstream.url, tmp_path, store=store_url(kind)) as gate:
        answers = list[httpx.Response]()
        for body in bodies("shared")[:at]:
            answers.append(post(gate, body))
            # Each worker writes its own lines, so two requests could be logged in another order than they came.
            wait_for(lambda: len(serving_workers(gate)) == len(answers), "the request is in the log")
        served = serving_workers(gate)
        kill_in_stream(gate, json.loads(bodies("shared")[at]))
        streamed = json.loads(upstream.raw.pop().body)
        answers += [post(gate, body) for body in bodies("shared")[at:]]
        hold.set()
        sent = [raw.body for raw in upstream.raw]
        wait_for(lambda: len(worker_pids(gate)) == 2, "the killed worker is started again")
        assert gate.metric("kompakt_worker_requests_total") >= len(answers)  # with those of the killed worker
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.headers["x-kompakt-session"] for answer in answers}) == 1
    assert any("x-kompakt-compaction" in answer.headers for answer in answers[:at])
    assert served in ([1, 2, 1, 2, 1], [2, 1, 2, 1, 2])
    assert {**streamed, "stream": None} == {**json.loads(expected[at]), "stream": None}
    assert sent == expected


def serving_workers(gate: Replica) -> list[int]:
    """Return the workers of the requests in the log; a request is logged after its response."""
    return [line["worker"] for line in records(gate) if line.get("route") == "chat"]


def kill_in_stream(gate: Replica, body: dict[str, Any]) -> None:
    """Begin a stream and kill the worker that serves it."""
    url, headers = gate.url + STREAMED[FORMAT], HEADERS[FORMAT]
    with httpx.stream("POST", url, json={**body, "stream": True}, headers=headers, timeout=120) as answer:
        arriving = answer.iter_raw()
        next(arriving)
        port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
        (serving,) = [pid for pid in worker_pids(gate) if has_connection(pid, port)]
        os.kill(serving, signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            list(arriving)
    wait_for(lambda: serving not in worker_pids(gate), "the supervisor notices that the worker is gone")


def has_connection(pid: int, port: int) -> bool:
    """Return whether a process has a socket whose other end is a local port."""
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{fields[9]}]" for fields in table if int(fields[2].rpartition(":")[2], 16) == port}
    return any(os.readlink(file) in sockets for file in Path(f"/proc/{pid}/fd").iterdir())


def test_a_connection_that_a_killed_worker_had_not_taken_goes_to_another_one(tmp_path: Path) -> None:
    """Half of the connections are passed to a worker that has stopped reading, and that is then killed."""
    body = json.dumps(request(FORMAT, history(FORMAT, 1))).encode()
    with (
        Upstream(answering) as upstream,
        two_workers(upstream.url, tmp_path, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
        ThreadPoolExecutor(6) as pool,
    ):
        wait_for(lambda: len(worker_pids(gate)) == 2, "both workers run")
        for _ in range(4):  # both workers are ready
            assert post(gate, body).status_code == 200
        victim = min(worker_pids(gate))
        os.kill(victim, signal.SIGSTOP)
        asked = [pool.submit(post, gate, body) for _ in range(6)]
        wait_for(lambda: sum(one.done() for one in asked) == 3, "the other worker answered its connections")
        os.kill(victim, signal.SIGKILL)
        assert [one.result(60).status_code for one in asked] == [200] * 6


def test_a_rolling_restart_loses_no_request(tmp_path: Path) -> None:
    """Clients with open connections send all the time, and a stream is open, while every worker is replaced."""
    done, hold, chunks = threading.Event(), threading.Event(), events(FORMAT)
    short = json.dumps(request(FORMAT, history(FORMAT, 1))).encode()

    def plan(raw: Raw) -> Reply:
        if json.loads(raw.body).get("stream"):
            return Reply(chunks, 200, {"content-type": "text/event-stream"}, [hold])
        return answering(raw)

    def send(_: int) -> list[int]:
        found: list[int] = []
        with httpx.Client() as client:  # keeps its connection, and reconnects when the gateway asks for it
            while not done.is_set():
                found.append(post(gate, short, client).status_code)
                done.wait(0.02)  # the workers that start need the processor too
        return found

    store = f"sqlite:///{tmp_path / 'shared.db'}"
    with ExitStack() as stack:
        upstream = stack.enter_context(Upstream(plan))
        gate = stack.enter_context(two_workers(upstream.url, tmp_path, store=store))
        before = worker_pids(gate)
        body = request(FORMAT, history(FORMAT, 2), stream=True)
        stream = httpx.stream("POST", gate.url + STREAMED[FORMAT], json=body, headers=HEADERS[FORMAT], timeout=120)
        arriving = stack.enter_context(stream).iter_raw()
        got = next(arriving)
        pool = stack.enter_context(ThreadPoolExecutor(3))
        stack.callback(done.set)
        running = [pool.submit(send, number) for number in range(3)]
        gate.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "all workers replaced" in gate.log.read_text(), "the workers are replaced", seconds=180)
        wait_for(lambda: len(worker_pids(gate) & before) == 1, "only the worker of the stream is left")
        hold.set()
        assert got + b"".join(arriving) == b"".join(chunks)
        wait_for(lambda: not worker_pids(gate) & before, "it ends after the stream")
        done.set()
        answers = [status for future in running for status in future.result()]
        assert set(answers) == {200} and len(worker_pids(gate)) == 2
        assert len(upstream.raw) == len(answers) + 1
        assert gate.metric("kompakt_worker_requests_total") > len(answers)  # with those of the old workers
        assert gate.end() == 0


def test_workers_stay_when_settings_are_invalid_and_end_with_their_supervisor(tmp_path: Path) -> None:
    file = tmp_path / "kompakt.toml"
    file.write_text("[serve]\nmax_body = 1000\n")
    store = f"sqlite:///{tmp_path / 'shared.db'}"
    with Upstream(answering) as upstream, two_workers(upstream.url, tmp_path, store=store) as gate:
        workers = worker_pids(gate)
        file.write_text("[serve]\nmax_bodyy = 1\n")
        gate.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "keeping the old workers" in gate.log.read_text(), "the error is logged")
        assert worker_pids(gate) == workers and gate.get("/healthz").status_code == 200
        gate.kill()
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the workers end")


def test_a_store_that_cannot_be_opened_is_reported_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kompakt", "serve", "--port", "0", "--workers", "2"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, "--store", "sqlite:////nowhere/at/all.db"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert "choose another store with --store" in done.stderr


def test_a_store_in_memory_is_refused() -> None:
    with pytest.raises(UsageError, match=re.escape("choose --store sqlite:///FILE, postgresql://…")):
        GatewayConfig(workers=2, store="memory:")


def test_workers_that_start_at_the_same_time_have_their_own_metrics_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files: list[int] = []

    class Process:
        returncode = None

        async def wait(self) -> int:
            await asyncio.sleep(60)
            return 0

    async def start(*_: str, env: dict[str, str], **__: Any) -> Process:
        files.append(json.loads(env[workers.VARIABLE])["metrics_file"])
        await asyncio.sleep(0)
        if len(files) == 4:
            raise OSError("out of memory")
        return Process()

    async def main() -> None:
        settings = GatewayConfig(store=f"sqlite:///{tmp_path / 'w.db'}", workers=3)
        with socket.socket() as listening:
            supervisor = Supervisor(settings, listening, {}, lambda: settings)
            started = await asyncio.gather(*(supervisor._spawn(number) for number in (1, 2, 3)))
            with pytest.raises(OSError, match="out of memory"):
                await supervisor._spawn(4)
            started.append(await supervisor._spawn(4))  # the number of the one that could not start is free
            for worker in started:
                worker.close()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    asyncio.run(main())
    assert files == [1, 2, 3, 4, 4]


def test_a_worker_without_free_file_descriptors_continues(caplog: pytest.LogCaptureFixture) -> None:
    """The kernel then delivers the message of a connection without the connection."""
    served: list[socket.socket] = []
    stopped: list[bool] = []

    async def main() -> None:
        ours, theirs = socket.socketpair()
        assigned = WorkerAssignment(1, theirs.detach(), "", 1, {})
        channel = WorkerChannel(assigned, serve=served.append, retire=lambda: None, stop=lambda: stopped.append(True))
        channel.open()
        assert ours.recv(1) == workers._READY
        with ours, socket.socket() as connection:
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            free = os.dup(connection.fileno())
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
            try:
                socket.send_fds(ours, [workers._CONNECTION], [connection.fileno()])
                await asyncio.sleep(0.05)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert not served and not stopped
            socket.send_fds(ours, [workers._CONNECTION], [connection.fileno()])
            await asyncio.sleep(0.05)
            assert len(served) == 1 and not stopped
            assert ours.recv(10) == 2 * workers._TAKEN  # the supervisor closes the dropped one, too
            served[0].close()
            channel.close()

    with caplog.at_level(logging.ERROR, "kompakt.gateway"):
        asyncio.run(main())
    assert "too many open files" in caplog.text
