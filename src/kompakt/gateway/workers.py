"""Several gateway processes on one port: a supervisor that starts, replaces and stops workers, and its channel to them.

The supervisor accepts connections and passes them to its workers in turn, over a socket pair per worker. Workers that
accept from one shared socket by themselves are loaded unevenly: whichever wakes first takes all pending connections,
and agents keep a connection for a whole session. With a listening socket per worker, a worker that ends takes the
connections in its queue along. Here a connection belongs to the supervisor until a worker has confirmed that it has it;
the connections that a worker had not confirmed when it died go to another one.

A worker is ``kompakt serve`` with the variable ``KOMPAKT_WORKER``. It shares nothing with the others but the store, so
the rules of replicas apply: any worker may serve any request of a conversation.

``SIGHUP`` replaces all workers without losing a request: a new worker takes over new connections, then the old one is
retired. It finishes its requests, however long they take, and asks clients to reconnect with ``connection: close``. An
idle connection stays open for ``drain`` seconds, because its client may be sending. ``SIGTERM`` and ``SIGINT`` stop all
workers within ``drain`` seconds. If the supervisor dies, its workers stop as well.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import msgspec

from kompakt.errors import UsageError
from kompakt.gateway.config import FLUSH_SECONDS, GatewayConfig
from kompakt.gateway.http.metrics import forget_process

_log = logging.getLogger("kompakt.gateway")

VARIABLE = "KOMPAKT_WORKER"
"""The environment variable that makes ``kompakt serve`` a worker. It holds a ``WorkerAssignment`` as JSON."""

COMMAND = (sys.executable, "-P", "-m", "kompakt", "serve")

_CONNECTION, _RETIRE, _STOP = b"c", b"r", b"s"
"""Messages to a worker. A connection comes with its file descriptor."""
_READY, _TAKEN = b"1", b"t"
"""Messages of a worker: it accepts connections, it has the oldest connection that it had not confirmed."""

START_TIMEOUT = 60.0
"""Seconds for a worker to become ready."""

RESTART_PAUSE = 0.5
"""Seconds before a worker that died is started again; doubled each time, up to ``MAX_RESTART_PAUSE``."""
MAX_RESTART_PAUSE = 30.0

STABLE = 60.0
"""Seconds of service after which the pause starts small again."""

STOP_MARGIN = FLUSH_SECONDS + 10.0
"""Seconds beyond ``drain`` after which a worker that does not stop is killed: it writes what is queued, then closes the
store. The grace periods in ``deploy/`` are longer than both together."""

_PAUSE = 0.01
"""Seconds to wait when no worker can take a connection, or the supervisor no confirmation."""

_CONFIRMATIONS = 4_096
"""Confirmations that the supervisor reads at once."""


class WorkerAssignment(msgspec.Struct, frozen=True):
    """What a worker gets from its supervisor."""

    number: int
    """From 1; the replacement of a worker has the same number."""
    channel: int
    """File descriptor of the socket to the supervisor."""
    metrics_folder: str
    metrics_file: int
    """Names its files in the folder; no other running worker has the same."""
    flags: dict[str, Any]
    """The command-line settings of the supervisor."""


def assignment(environ: Mapping[str, str] = os.environ) -> WorkerAssignment | None:
    """Return the assignment of this process if it is a worker."""
    given = environ.get(VARIABLE)
    return None if given is None else msgspec.json.decode(given, type=WorkerAssignment)


# --- in the worker -------------------------------------------------------------------------------------------------


class WorkerChannel:
    """The worker's end of the channel: receives connections and orders."""

    def __init__(
        self,
        assigned: WorkerAssignment,
        *,
        serve: Callable[[socket.socket], None],
        retire: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        self._socket = socket.socket(fileno=assigned.channel)
        self._socket.setblocking(False)
        self._serve, self._retire, self._stop = serve, retire, stop
        self._unconfirmed = 0

    def open(self) -> None:
        """Report that the worker is ready, and receive from now on."""
        self._socket.send(_READY)
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def _receive(self) -> None:
        while True:
            try:
                message, files, _, _ = socket.recv_fds(self._socket, 1, 1)
            except BlockingIOError:
                return
            except OSError:
                message, files = b"", []
            if message == _CONNECTION and files:
                self._unconfirmed += 1
                self._confirm()
                self._serve(socket.socket(fileno=files[0]))
            elif message == _CONNECTION:  # no file descriptor was free for it
                self._unconfirmed += 1
                self._confirm()
                _log.error("connection dropped: this worker has too many open files; raise `ulimit -n`")
            elif message == _RETIRE:
                self._retire()
            else:  # an order to stop, or the supervisor is gone
                self.close()
                self._stop()
                return

    def _confirm(self) -> None:
        """Confirm connections before anything is read from them; later if the supervisor does not read now."""
        if self._socket.fileno() < 0:
            return
        try:
            self._unconfirmed -= self._socket.send(_TAKEN * self._unconfirmed) if self._unconfirmed else 0
        except BlockingIOError:
            asyncio.get_running_loop().call_later(_PAUSE, self._confirm)
        except OSError:  # the supervisor is gone, which the next message says
            return

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()


# --- the supervisor ------------------------------------------------------------------------------------------------


class _Worker:
    """A running worker process."""

    def __init__(self, number: int, file: int, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self.number, self.file, self.process, self.channel = number, file, process, channel
        self.ready_at = 0.0
        self._unconfirmed: deque[socket.socket] = deque()
        self._is_open = False

    def open(self) -> None:
        """Read what the worker confirms from now on."""
        self._is_open = True
        asyncio.get_running_loop().add_reader(self.channel, self._read_confirmations)

    def pass_on(self, connection: socket.socket) -> bool:
        """Pass a connection to the worker; false if that is not possible. It stays open here until it is confirmed."""
        if not self.send(_CONNECTION, connection):
            return False
        self._unconfirmed.append(connection)
        return True

    def _read_confirmations(self) -> bool:
        """Close the connections that the worker has; false if it confirms nothing more."""
        try:
            confirmed = len(self.channel.recv(_CONFIRMATIONS))
        except BlockingIOError:
            return False
        except OSError:
            confirmed = 0
        if not confirmed:  # the worker ended
            asyncio.get_running_loop().remove_reader(self.channel)
        for _ in range(min(confirmed, len(self._unconfirmed))):
            self._unconfirmed.popleft().close()
        return confirmed > 0

    def close(self) -> list[socket.socket]:
        """Close the channel of a worker that ended; return the connections that it did not confirm."""
        while self._is_open and self._read_confirmations():
            pass
        if self._is_open:
            asyncio.get_running_loop().remove_reader(self.channel)
        self.channel.close()
        return list(self._unconfirmed)

    def send(self, message: bytes, connection: socket.socket | None = None) -> bool:
        """Send a message; false if the worker is gone or does not read."""
        try:
            socket.send_fds(self.channel, [message], [] if connection is None else [connection.fileno()])
        except OSError:
            return False
        return True


class Supervisor:
    """Starts workers and passes connections to them."""

    def __init__(
        self,
        settings: GatewayConfig,
        listening: socket.socket,
        flags: Mapping[str, Any],
        load: Callable[[], GatewayConfig],
    ) -> None:
        self._settings = settings
        self._listening = listening
        self._flags = dict(flags)
        self._load = load
        self._metrics = ""
        self._current: dict[int, _Worker] = {}
        """Workers by number, without those that are being replaced."""
        self._turns: deque[_Worker] = deque()
        """The same, in the order in which they get connections."""
        self._running: set[_Worker] = set()
        """All processes, with those that are retired or not ready yet."""
        self._files: set[int] = set()
        """The numbers of the metrics files of all processes, with those that are being started."""
        self._pauses: dict[int, float] = {}
        """Seconds before the next start of a worker that died, by number."""
        self._watches: set[asyncio.Task[None]] = set()
        self._rolling: asyncio.Task[None] | None = None
        self._is_rolling_again = False
        self._stop = asyncio.Event()

    async def run(self, on_ready: Callable[[], None]) -> int:
        """Run until a signal stops it; return the exit code. If the first worker cannot start, return its code."""
        loop = asyncio.get_running_loop()
        self._listening.setblocking(False)
        self._metrics = tempfile.mkdtemp(prefix="kompakt-metrics-")
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self.roll)
        accepting = None
        try:
            failed = await self._start_all()
            if failed is not None or self._stop.is_set():
                return failed or 0
            accepting = asyncio.create_task(self._accept())
            on_ready()
            await self._stop.wait()
            return 0
        finally:
            if accepting is not None:
                accepting.cancel()
            self._listening.close()
            await self._stop_all()
            shutil.rmtree(self._metrics, ignore_errors=True)

    def roll(self) -> None:
        """Replace all workers, one after the other. They read the configuration again."""
        if self._rolling is not None and not self._rolling.done():
            self._is_rolling_again = True
            return
        self._rolling = asyncio.create_task(self._roll())

    # --- processes ------------------------------------------------------------------------------------------------

    async def _start_all(self) -> int | None:
        """Start the first worker, then the others; return the exit code of the first if it fails."""
        first = await self._spawn(1)
        if not await self._is_ready(first):
            return first.process.returncode or 1
        self._take_over(first)
        others = [await self._spawn(number) for number in range(2, self._settings.workers + 1)]
        for worker in others:
            if await self._is_ready(worker):
                self._take_over(worker)
            else:
                self._watch(asyncio.create_task(self._replace(worker.number)))
        return None

    async def _spawn(self, number: int) -> _Worker:
        ours, theirs = socket.socketpair()
        file = next(one for one in range(1, len(self._files) + 2) if one not in self._files)
        self._files.add(file)  # now, because other workers may be started meanwhile
        given = WorkerAssignment(number, theirs.fileno(), self._metrics, file, self._flags)
        environ = {**os.environ, VARIABLE: msgspec.json.encode(given).decode()}
        with theirs, ExitStack() as unstarted:
            unstarted.callback(ours.close)
            unstarted.callback(self._files.discard, file)
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                env=environ,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in a terminal must reach the supervisor only
            )
            unstarted.pop_all()
        ours.setblocking(False)
        worker = _Worker(number, file, process, ours)
        self._running.add(worker)
        self._watch(asyncio.create_task(self._attend(worker)))
        return worker

    async def _is_ready(self, worker: _Worker) -> bool:
        """Wait until a worker accepts connections; false if it ends instead, or takes too long and is killed."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(START_TIMEOUT):
                if await loop.sock_recv(worker.channel, 1) == _READY:
                    worker.ready_at = loop.time()
                    worker.open()
                    return True
        except TimeoutError:
            _log.error("worker %d was not ready within %g seconds", worker.number, START_TIMEOUT, extra=_named(worker))
            _signal(worker, signal.SIGKILL)
        except OSError:  # the worker was killed
            pass
        await worker.process.wait()
        return False

    def _take_over(self, worker: _Worker) -> None:
        """Give new connections to a worker, and retire the one that it replaces."""
        old = self._current.get(worker.number)
        self._current[worker.number] = worker
        self._turns.append(worker)
        if old is not None:
            self._retire(old)

    def _retire(self, worker: _Worker) -> None:
        self._turns = deque(one for one in self._turns if one is not worker)
        worker.send(_RETIRE)

    async def _attend(self, worker: _Worker) -> None:
        """Wait for the end of a worker; start another if nothing replaced it."""
        code = await worker.process.wait()
        self._running.discard(worker)
        self._turns = deque(one for one in self._turns if one is not worker)
        for connection in worker.close():
            self._watch(asyncio.create_task(self._deliver(connection)))
        forget_process(self._metrics, worker.file)
        self._files.discard(worker.file)
        if self._stop.is_set() or self._current.get(worker.number) is not worker:
            return
        del self._current[worker.number]
        if asyncio.get_running_loop().time() - worker.ready_at >= STABLE:
            self._pauses.pop(worker.number, None)
        _log.error("worker %d ended with code %d", worker.number, code, extra=_named(worker))
        await self._replace(worker.number)

    async def _replace(self, number: int) -> None:
        """Start a worker after a pause, until one is ready."""
        while self._misses(number):
            pause = self._pauses.get(number, RESTART_PAUSE)
            self._pauses[number] = min(2 * pause, MAX_RESTART_PAUSE)
            _log.info("starting worker %d in %g seconds", number, pause, extra={"kompakt": {"worker": number}})
            await asyncio.sleep(pause)
            if not self._misses(number):
                return
            worker = await self._spawn(number)
            if await self._is_ready(worker):
                if self._misses(number):
                    self._take_over(worker)
                else:  # a rolling restart was faster
                    self._retire(worker)

    def _misses(self, number: int) -> bool:
        return not self._stop.is_set() and number <= self._settings.workers and number not in self._current

    async def _roll(self) -> None:
        while True:
            self._is_rolling_again = False
            try:
                settings = self._load()
            except UsageError as error:
                _log.error("configuration reload failed, keeping the old workers: %s", error)
                return
            await self._roll_to(settings)
            if not self._is_rolling_again:
                return

    async def _roll_to(self, settings: GatewayConfig) -> None:
        fixed = [name for name in ("host", "port") if getattr(settings, name) != getattr(self._settings, name)]
        if fixed:
            _log.warning("restart required to change: %s", ", ".join(fixed))
        _log.info("replacing %d workers", len(self._current))
        self._settings = settings
        for number in range(1, settings.workers + 1):
            worker = await self._spawn(number)
            if self._stop.is_set():
                return
            if not await self._is_ready(worker):
                _log.error("worker %d cannot be replaced; the old workers continue", number, extra=_named(worker))
                return
            self._take_over(worker)
        for number in [one for one in self._current if one > settings.workers]:
            self._retire(self._current.pop(number))
        _log.info("all workers replaced")

    # --- connections ----------------------------------------------------------------------------------------------

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError as error:  # for example too many open files
                _log.error("cannot accept connections: %s", error.strerror or error)
                await asyncio.sleep(1)
                continue
            await self._deliver(connection)

    async def _deliver(self, connection: socket.socket) -> None:
        """Pass a connection to a worker as soon as one can take it."""
        try:
            while not self._pass_on(connection):
                await asyncio.sleep(_PAUSE)
        except asyncio.CancelledError:
            connection.close()
            raise

    def _pass_on(self, connection: socket.socket) -> bool:
        """Pass a connection to the next worker that can take it; false if there is none."""
        for _ in range(len(self._turns)):
            worker = self._turns[0]
            self._turns.rotate(-1)
            if worker.pass_on(connection):
                return True
        return False

    # --- stop -----------------------------------------------------------------------------------------------------

    def _on_stop(self, number: signal.Signals) -> None:
        if self._stop.is_set() and number == signal.SIGINT:
            for worker in self._running:
                _signal(worker, signal.SIGINT)
        self._stop.set()

    async def _stop_all(self) -> None:
        """Stop all processes; kill those that do not stop in time."""
        self._stop.set()
        if self._rolling is not None:
            self._rolling.cancel()
        for worker in self._running:
            if not worker.send(_STOP):
                _signal(worker, signal.SIGTERM)
        ends = [asyncio.create_task(worker.process.wait()) for worker in self._running]
        if ends:
            await asyncio.wait(ends, timeout=self._settings.drain + STOP_MARGIN)
        for worker in self._running:
            if worker.process.returncode is None:
                _log.error("worker %d did not stop in time and is killed", worker.number, extra=_named(worker))
                _signal(worker, signal.SIGKILL)
        for task in list(self._watches):
            task.cancel()

    def _watch(self, task: asyncio.Task[None]) -> None:
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)


def _signal(worker: _Worker, number: signal.Signals) -> None:
    if worker.process.returncode is None:
        worker.process.send_signal(number)


def _named(worker: _Worker) -> dict[str, Any]:
    return {"kompakt": {"worker": worker.number, "pid": worker.process.pid}}
