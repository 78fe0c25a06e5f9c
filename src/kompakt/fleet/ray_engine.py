"""The Ray engine: Ray Data with long-lived actors that run the same jobs as local workers.

Tasks are small: they name inputs, which the actors read. The blocks of the dataset are in the object store from the
start, so there are no read tasks that could wait for a CPU which the actors hold. One CPU stays free nevertheless,
because Ray Data runs other tasks of its own.

An actor that dies loses its block. Ray runs the block once more, because a node may have been removed. What has
no rows after that runs once more, one task per block, so that a session which kills its worker takes no others with it.
What has no rows then becomes rows with an error.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from kompakt.errors import UsageError
from kompakt.fleet.jobs import LOST, FleetSettings, FleetTask, JobRunner, failed_rows, pickled, quiet
from kompakt.fleet.local import WorkerFailure
from kompakt.fleet.rows import FleetRow, arrow
from kompakt.version import __version__, install_command

OBJECT_STORE_BYTES = 256_000_000
"""Object store of a Ray that is started here. Tasks are small, and rows leave it at once."""

BLOCKS_PER_WORKER = 8
"""A worker gets at least about this many blocks, so that all of them finish at about the same time."""
MAX_BLOCK = 32
MAX_BLOCK_BYTES = 16_000_000
"""Most inputs of a block, and most bytes unless one input has more: the rows of a block come together."""

RESTARTS = 1
"""How often a block is run again when its actor dies."""

PASSES = 2

CONNECT_SECONDS = 10.0


def require() -> None:
    """Check that Ray is installed.

    Raises:
        UsageError: it is not.
    """
    if find_spec("ray") is None or find_spec("ray.data") is None:
        raise UsageError(f"--engine ray needs Ray; install it with: {install_command('fleet')}; or use --engine local")


class RayWorker:
    """The callable of an actor: from tasks to rows, both pickled in one column."""

    def __init__(self, settings: bytes, version: str) -> None:
        if version != __version__:
            raise RuntimeError(f"this node has kompakt {__version__}, and the driver has {version}; install the same")
        quiet()
        self._runner = JobRunner(pickle.loads(settings))

    def __call__(self, batch: Any) -> Any:
        rows = [pickle.dumps(self._runner.run(pickle.loads(task.as_py()))) for task in batch.column("task")]
        return arrow().table({"rows": rows}, schema=arrow().schema([("rows", arrow().large_binary())]))


def run_ray(
    tasks: Sequence[FleetTask], settings: FleetSettings, *, workers: int | None = None, address: str | None = None
) -> Generator[list[FleetRow]]:
    """Run tasks on Ray and yield the rows of each as it is finished.

    Raises:
        UsageError: the cluster cannot be reached, or has too few CPUs for the workers.
        WorkerFailure: the workers cannot run.
    """
    if not tasks:
        return
    with _connected(workers, address):
        actors, cpus = plan(workers, *_cpus())
        left = {task.item.source: task for task in tasks}
        for number in range(PASSES):
            size = 1 if number else block_size(tasks, actors)
            for rows in _run_pass(list(left.values()), settings, actors, cpus, size):
                if left.pop(rows[0].source, None) is not None:
                    yield rows
            if not left:
                return
        for task in left.values():  # alone: it may only have waited for a worker that another task killed
            found = list(_run_pass([task], settings, 1, cpus, 1))
            yield from found or [failed_rows(task, settings, LOST)]


def block_size(tasks: Sequence[FleetTask], actors: int) -> int:
    """Return the number of tasks in a block."""
    average = sum(task.item.size for task in tasks) / len(tasks)
    return max(1, min(MAX_BLOCK, len(tasks) // (actors * BLOCKS_PER_WORKER), int(MAX_BLOCK_BYTES / max(1, average))))


def plan(workers: int | None, total: float, free: float) -> tuple[int, float]:
    """Return the number of actors, and the CPUs of each, for a cluster with these CPUs.

    Raises:
        UsageError: the actors would wait for CPUs for ever.
    """
    if total < 1 or free < 1:
        raise UsageError(
            f"the Ray cluster has {free:g} of {total:g} CPUs free; a fleet job needs at least one. Wait until another "
            "job ends, or add a node"
        )
    if total < 2:
        if workers is not None and workers > 1:
            raise UsageError(f"{workers} workers need {workers + 1} CPUs, and the Ray cluster has 1; pass --workers 1")
        return 1, 0.5  # the other half is for the tasks of Ray Data
    most = int(total) - 1
    if workers is not None and workers > most:
        raise UsageError(
            f"{workers} workers need {workers + 1} CPUs: one for each worker and one for the tasks of Ray Data. "
            f"The Ray cluster has {total:g}; pass --workers {most}, or add nodes"
        )
    return workers or max(1, min(most, int(free) - 1)), 1.0


def _cpus() -> tuple[float, float]:
    import ray

    return float(ray.cluster_resources().get("CPU", 0)), float(ray.available_resources().get("CPU", 0))


@contextmanager
def _connected(workers: int | None, address: str | None) -> Generator[None]:
    """Connect to a cluster, or start Ray on this machine and end it afterwards."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        # The CPUs of Ray are only numbers: one more than workers, which the tasks of Ray Data use.
        options |= {
            "num_cpus": (workers or os.cpu_count() or 1) + 1,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
    else:
        _check_address(address)
        options["address"] = address
    try:
        ray.init(**options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(f"cannot connect to Ray at {address or 'this machine'}: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Check that a server listens at HOST:PORT; Ray itself would try for minutes.

    Raises:
        UsageError: there is none.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"there is no Ray cluster at {address}: {error}") from None


def _run_pass(
    tasks: Sequence[FleetTask], settings: FleetSettings, actors: int, cpus: float, size: int
) -> Iterator[list[FleetRow]]:
    """Run tasks in blocks of ``size``; those of blocks that are lost are missing in the result."""
    import ray.data
    from ray.exceptions import RayError

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.max_errored_blocks = -1  # the next pass runs them again
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # lost blocks run again, and get rows in the end
    count = -(-len(tasks) // size)
    # Large inputs come first, and every block gets its share of them. ``from_items`` divides the list evenly.
    packed = [{"task": pickle.dumps(task)} for number in range(count) for task in tasks[number::count]]
    with warnings.catch_warnings():
        # Ray announces that it will not take other options than the named ones, which lack these two.
        warnings.simplefilter("ignore", DeprecationWarning)
        dataset = ray.data.from_items(packed, override_num_blocks=count).map_batches(
            RayWorker,
            fn_constructor_args=(pickled(settings), __version__),
            batch_format="pyarrow",
            batch_size=None,
            num_cpus=cpus,
            concurrency=min(actors, count),
            max_restarts=RESTARTS,
            max_task_retries=RESTARTS,
        )
    try:
        batches: Iterable[Any] = dataset.iter_batches(batch_format="pyarrow", batch_size=None)
        for batch in batches:
            yield from _unpacked(batch.column("rows"))
    except RayError as error:
        first = str(error).strip().rpartition("\n")[2]
        raise WorkerFailure(f"the workers cannot run on Ray: {first}") from error


def _unpacked(column: Iterable[Any]) -> Iterator[list[FleetRow]]:
    for packed in column:
        yield pickle.loads(packed.as_py())
