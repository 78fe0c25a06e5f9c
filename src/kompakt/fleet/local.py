"""The local engine: worker processes on this machine, each with one task at a time.

A worker is a separate program that is connected by pipes, so the caller's main module is not imported again. When a
worker dies, its task is known: it runs once more in a new process and then becomes rows with an error.
"""

from __future__ import annotations

import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from typing import IO, Any

from kompakt.errors import KompaktError
from kompakt.fleet.jobs import LOST, FleetSettings, FleetTask, JobRunner, failed_rows, pickled, quiet
from kompakt.fleet.rows import FleetRow

TRIES = 2
"""How often a task is given to a worker that dies."""

HEARTBEAT = 1.0
"""Seconds after which an empty result is yielded, so that the caller can act while the workers are busy."""

PATIENCE = 5.0

_LENGTH = struct.Struct("<Q")
_READY = "ready"


class WorkerFailure(KompaktError):
    """The worker processes of a job cannot run."""


def run_serially(tasks: Sequence[FleetTask], settings: FleetSettings) -> Iterator[list[FleetRow]]:
    """Run tasks in this process."""
    with closing(JobRunner(settings)) as runner:
        for task in tasks:
            yield runner.run(task)


def run_local(tasks: Sequence[FleetTask], settings: FleetSettings, workers: int) -> Generator[list[FleetRow]]:
    """Run tasks in worker processes and yield the rows of each as it is finished; an empty list is a heartbeat.

    Closing the generator ends the workers at once.

    Raises:
        UsageError: a policy cannot be sent to a worker.
        WorkerFailure: a worker cannot start, or all of them have ended.
    """
    pool = _Pool(tasks, settings)
    for _ in range(min(workers, len(tasks))):
        pool.add_worker()
    finished = 0
    try:
        while finished < len(tasks):
            try:
                result = pool.results.get(timeout=HEARTBEAT)
            except queue.Empty:
                if not pool.is_running and pool.results.empty():
                    raise WorkerFailure("the worker processes ended before the job") from None
                yield []
                continue
            if isinstance(result, WorkerFailure):
                raise result
            finished += 1
            yield result
    finally:
        pool.close()


class _Pool:
    def __init__(self, tasks: Sequence[FleetTask], settings: FleetSettings) -> None:
        self.results: queue.SimpleQueue[list[FleetRow] | WorkerFailure] = queue.SimpleQueue()
        self._settings = settings
        self._packed = pickled(settings)
        self._tasks = iter(tasks)
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def add_worker(self) -> None:
        thread = threading.Thread(target=self._attend, daemon=True)
        self._threads.append(thread)
        thread.start()

    @property
    def is_running(self) -> bool:
        """Whether there may be more results."""
        return any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """End all workers."""
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.kill()
        for thread in self._threads:
            thread.join()

    def _next(self) -> FleetTask | None:
        with self._lock:
            return None if self._closed else next(self._tasks, None)

    def _attend(self) -> None:
        """Give tasks to one worker, and start another one when it dies."""
        process: subprocess.Popen[bytes] | None = None
        try:
            while (task := self._next()) is not None:
                rows = None
                for _ in range(TRIES):
                    process = process or self._start()
                    rows = _exchange(process, task)
                    if rows is not None or self._closed:
                        break
                    self._end(process)
                    process = None
                if self._closed:
                    return
                self.results.put(failed_rows(task, self._settings, LOST) if rows is None else rows)
        except WorkerFailure as failure:
            self.results.put(failure)
        except OSError as error:
            self.results.put(WorkerFailure(f"a worker cannot run: {error}"))
        finally:
            if process is not None:
                self._end(process, patience=0 if self._closed else PATIENCE)

    def _start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(path for path in sys.path if path)
        with self._lock:
            if self._closed:
                raise WorkerFailure("the job has ended")
            process = subprocess.Popen(
                [sys.executable, "-m", "kompakt.fleet.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C in a terminal goes to the driver only, which ends the workers
            )
            self._processes.add(process)
        if _exchange(process, self._packed) != _READY:
            self._end(process)
            raise WorkerFailure(f"a worker process cannot start: it ended with code {process.returncode}")
        return process

    def _end(self, process: subprocess.Popen[bytes], patience: float = 0) -> None:
        """End a worker; one without a task gets ``patience`` seconds to close its connection to the store."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # what was not sent is lost with the worker
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        process.kill()
        process.wait()
        process.stdout.close()
        with self._lock:
            self._processes.discard(process)


def _exchange(process: subprocess.Popen[bytes], value: Any) -> Any:
    """Send a value to a worker and return its answer; ``None`` if the worker died."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        send(process.stdin, value)
        return receive(process.stdout)
    except (OSError, EOFError, ValueError):  # ValueError: the pipe was closed
        return None


def send(pipe: IO[bytes], value: Any) -> None:
    """Write a value with its length."""
    data = pickle.dumps(value)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Read a value.

    Raises:
        EOFError: the other side has closed the pipe.
    """
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    size: int = _LENGTH.unpack(head)[0]
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


def serve() -> None:
    """Run the tasks that arrive on standard input until it is closed. The main function of a worker."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a strategy prints must not mix with the answers
    requests = sys.stdin.buffer
    quiet()
    with suppress(EOFError, BrokenPipeError), closing(JobRunner(pickle.loads(receive(requests)))) as runner:
        send(answers, _READY)
        while True:  # until the driver has ended
            send(answers, runner.run(receive(requests)))
