"""Prometheus metrics, in a registry per gateway so that a process may hold several.

Labels have few values, all chosen by the gateway: never a tenant, model or path, of which a client could invent any
number.

Workers share a folder with the values of each process. Any worker reports the sums, so one scrape shows all of them.
The values of a worker that ended still count, so counters never decrease.
"""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

CONTENT_TYPE = CONTENT_TYPE_LATEST

_OWN = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_UPSTREAM = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable in which ``prometheus_client`` expects the shared folder."""


def share_metrics(folder: str, file: int) -> None:
    """Keep the values of metrics that are created from now on in a shared folder.

    ``file`` names the files of this process. A process that ended leaves them to the next one with the same number.
    """
    os.environ[_FOLDER] = folder
    values.ValueClass = values.MultiProcessValue(lambda: file)


def forget_process(folder: str, file: int) -> None:
    """Remove the gauges of a process that ended."""
    mark_process_dead(file, folder)


class Metrics:
    """The gateway's metrics. Names and labels are part of the public interface."""

    def __init__(self, worker: int = 1) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "kompakt_requests", "Requests answered.", ["route", "status"], registry=registry
        )  # fmt: skip
        self.refusals = Counter(
            "kompakt_refusals", "Requests that the gateway answered with an error.", ["code"], registry=registry
        )
        self.in_flight = Gauge(
            "kompakt_in_flight",
            "Requests in flight, including streams.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.compactions = Counter("kompakt_compactions", "Compactions made.", ["reason"], registry=registry)
        self.narratives = Counter(
            "kompakt_narratives", "Narratives that a model was asked for.", ["outcome"], registry=registry
        )
        self.narrative_tokens = Counter(
            "kompakt_narrative_tokens", "Billed tokens of narratives.", ["kind"], registry=registry
        )
        self.tokens_before = Counter("kompakt_tokens_before", "Tokens received from clients.", registry=registry)
        self.tokens_after = Counter("kompakt_tokens_after", "Tokens sent upstream.", registry=registry)
        self.outcomes = Counter(
            "kompakt_outcomes",
            "Outcomes of provider requests, and why some were passed through unchanged.",
            ["outcome", "reason"],
            registry=registry,
        )
        self.overflows_recovered = Counter(
            "kompakt_overflows_recovered", "Requests that succeeded after a context overflow error.", registry=registry
        )
        self.recalls = Counter("kompakt_recall_calls", "Recall tool calls answered.", registry=registry)
        self.store_failures = Counter("kompakt_store_failures", "Failed store calls.", registry=registry)
        self.queued_writes = Gauge(
            "kompakt_queued_writes",
            "Writes that wait in the background. When a worker has too many, its requests wait too.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.background_writes = Counter(
            "kompakt_background_writes",
            "Writes taken from that queue. One may contain several requests of a session.",
            registry=registry,
        )
        self.degraded = Counter("kompakt_degraded", "Requests served without the store.", registry=registry)
        self.new_tenants = Counter(
            "kompakt_new_tenants", "Unknown credentials that came with a long history.", registry=registry
        )
        self.reloads = Counter("kompakt_reloads", "Reloads of the configuration.", ["outcome"], registry=registry)
        self.overhead = Histogram(
            "kompakt_overhead_seconds", "The gateway's own time per request.", buckets=_OWN, registry=registry
        )
        self.upstream = Histogram(
            "kompakt_upstream_seconds",
            "Time spent waiting for the provider, over all attempts, until the response to the client starts and until "
            "each later recall round starts.",
            buckets=_UPSTREAM,
            registry=registry,
        )

        workers = Counter("kompakt_worker_requests", "Requests answered, by worker.", ["worker"], registry=registry)
        self.worker_requests = workers.labels(str(worker))
        starts = Counter("kompakt_worker_starts", "Starts of each worker.", ["worker"], registry=registry)
        starts.labels(str(worker)).inc()

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format; those of all workers, if there are several."""
        registry = self.registry
        if _FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry)
