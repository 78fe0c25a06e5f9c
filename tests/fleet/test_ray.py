"""The Ray engine gives the rows of the local one: with killed workers, after a resume, and when a node is removed.

All tests use one cluster of two nodes, because starting Ray takes seconds.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fleet.archive import write_archive
from tests.fleet.policies import Deadly, with_step
from tests.fleet.test_jobs import comparable, write_bodies

from kompakt.errors import UsageError
from kompakt.fleet import FleetRow, rows, run
from kompakt.fleet.jobs import LOST
from kompakt.fleet.ray_engine import plan

pytest.importorskip("ray.data")

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SESSIONS = int(os.environ.get("KOMPAKT_FLEET_SESSIONS", "40"))
"""Inputs of the archive, of which one in twenty is hostile; a soak has 500."""

BUDGET = 3_000


class TwoNodes:
    """A cluster of two nodes on this machine."""

    def __init__(self) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        options = {
            "num_cpus": 2,
            "object_store_memory": 80_000_000,
        }  # Ray connects to no cluster on the loopback address
        self.cluster: Any = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
        self.second = self.cluster.add_node(**options)

    def remove_second(self) -> None:
        """Remove a node without warning, with all of its workers."""
        if self.second is not None:
            self.cluster.remove_node(self.second, allow_graceful=False)
            self.second = None


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    found = TwoNodes()
    yield found
    found.cluster.shutdown()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    hostile = max(2, SESSIONS // 20)
    write_archive(folder, sessions=SESSIONS - hostile, hostile=hostile)
    write_bodies(folder / "marked", 1, marked=(0,))
    return folder


@pytest.fixture(scope="module")
def local(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> list[FleetRow]:
    """Rows of the local engine."""
    out = tmp_path_factory.mktemp("local")
    policy = with_step("deadly", Deadly(once=archive))  # this file exists, so it kills nothing
    run("compact", archive, out / "out", policies=policy, budgets=BUDGET, workers=2)
    return comparable(rows(out / "out"))


class TestRay:
    def test_rows_are_those_of_the_local_engine_after_a_killed_worker(
        self, archive: Path, local: list[FleetRow], nodes: TwoNodes, tmp_path: Path
    ) -> None:
        policy = with_step("deadly", Deadly(once=tmp_path / "died"))
        out = tmp_path / "out"
        run(
            "compact", archive, out, policies=policy, budgets=BUDGET, engine="ray",
            address=nodes.cluster.address, workers=2,
        )  # fmt: skip
        assert (tmp_path / "died").exists()
        assert comparable(rows(out)) == local
        assert sum(row.error is not None for row in local) >= 2

    def test_a_session_that_always_kills_its_worker_becomes_a_row(self, nodes: TwoNodes, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 5, marked=(2,))
        out = tmp_path / "out"
        run(
            "compact", source, out, policies=with_step("deadly", Deadly()), budgets=BUDGET, engine="ray",
            address=nodes.cluster.address, workers=2,
        )  # fmt: skip
        assert [row.error for row in rows(out)] == [None, None, LOST, None, None]

    def test_too_many_workers_are_refused(self, nodes: TwoNodes, tmp_path: Path) -> None:
        """A job that can never start does not wait for ever."""
        source = write_bodies(tmp_path / "in", 1)
        with pytest.raises(UsageError, match=r"9 workers need 10 CPUs.*has 4; pass --workers 3"):
            run("check", source, tmp_path / "out", engine="ray", address=nodes.cluster.address, workers=9)

    def test_an_interrupted_job_continues_and_survives_the_loss_of_a_node(
        self, archive: Path, local: list[FleetRow], nodes: TwoNodes, tmp_path: Path
    ) -> None:
        """Last in this file: the cluster has one node afterwards."""
        out = tmp_path / "out"
        policy = with_step("deadly", Deadly(once=archive))

        def interrupt(done: int, total: int, errors: int) -> None:
            if done >= total // 4:
                raise KeyboardInterrupt

        def lose_node(done: int, total: int, errors: int) -> None:
            if done >= total // 3:
                nodes.remove_second()

        for progress in (interrupt, lose_node):
            try:
                run(
                    "compact", archive, out, policies=policy, budgets=BUDGET, engine="ray",
                    address=nodes.cluster.address, workers=2, progress=progress,
                )  # fmt: skip
            except KeyboardInterrupt:
                assert 0 < len(rows(out)) < len(local)
        assert nodes.second is None
        assert comparable(rows(out)) == local

    def test_an_address_without_a_cluster_is_reported_at_once(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 1)
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UsageError, match="no Ray cluster at"):
            run("check", source, tmp_path / "out", engine="ray", address=address)


class TestPlan:
    """How many actors a cluster can run; one CPU stays free for Ray Data."""

    @pytest.mark.parametrize(
        ("workers", "total", "free", "expected"),
        [
            (None, 8, 8, (7, 1.0)),
            (None, 8, 3, (2, 1.0)),
            (None, 8, 1, (1, 1.0)),
            (3, 8, 8, (3, 1.0)),
            (None, 2, 2, (1, 1.0)),
            (None, 1, 1, (1, 0.5)),
        ],
    )
    def test_workers_fit_the_cluster(
        self, workers: int | None, total: float, free: float, expected: tuple[int, float]
    ) -> None:
        assert plan(workers, total, free) == expected

    @pytest.mark.parametrize(("workers", "total", "free"), [(2, 2, 2), (2, 1, 1), (None, 0, 0), (None, 4, 0)])
    def test_what_would_wait_for_ever_is_refused(self, workers: int | None, total: float, free: float) -> None:
        with pytest.raises(UsageError, match="CPU"):
            plan(workers, total, free)
