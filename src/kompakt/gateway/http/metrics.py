"""What is counted, for Prometheus. A registry of its own: nothing global, so a process may hold many gateways.

Labels are few and chosen by the gateway: no tenant, model or path that a client could invent new ones of.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST

_OWN = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_UPSTREAM = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The gateway's counters; each is used by its own methods, ``metrics.passes.inc()``."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "kompakt_requests", "Requests answered.", ["route", "status"], registry=registry
        )  # fmt: skip
        self.refusals = Counter(
            "kompakt_refusals", "Requests that the gateway did not take.", ["code"], registry=registry
        )
        self.in_flight = Gauge("kompakt_in_flight", "Requests under way, streams included.", registry=registry)
        self.compactions = Counter("kompakt_compactions", "Compactions made.", ["reason"], registry=registry)
        self.tokens_before = Counter("kompakt_tokens_before", "Tokens that clients sent.", registry=registry)
        self.tokens_after = Counter("kompakt_tokens_after", "Tokens that went upstream.", registry=registry)
        self.outcomes = Counter(
            "kompakt_outcomes",
            "What was done with requests to providers, and why some were left alone.",
            ["outcome", "reason"],
            registry=registry,
        )
        self.passes = Counter("kompakt_passes", "Requests that passed as they were.", registry=registry)
        self.overflows_recovered = Counter(
            "kompakt_overflows_recovered", "Requests that a provider found too long and then took.", registry=registry
        )
        self.recalls = Counter("kompakt_recall_calls", "Calls of the recall tool answered.", registry=registry)
        self.store_failures = Counter("kompakt_store_failures", "Calls of the store that failed.", registry=registry)
        self.degraded = Counter("kompakt_degraded", "Requests served without the store.", registry=registry)
        self.new_tenants = Counter(
            "kompakt_new_tenants", "Credentials not seen before that came with a long history.", registry=registry
        )
        self.reloads = Counter("kompakt_reloads", "Reloads of the configuration.", ["outcome"], registry=registry)
        self.overhead = Histogram(
            "kompakt_overhead_seconds", "The gateway's own time per request.", buckets=_OWN, registry=registry
        )
        self.upstream = Histogram(
            "kompakt_upstream_seconds", "Time until the provider began to answer.", buckets=_UPSTREAM, registry=registry
        )

    def text(self) -> bytes:
        """Write all of it in Prometheus' text format."""
        return generate_latest(self.registry)
