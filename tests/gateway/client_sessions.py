"""Sessions of tool calls through the gateway with the official clients, and checks of the upstream requests."""

from __future__ import annotations

import asyncio
import hashlib
from functools import cached_property
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import anthropic
import openai
from google import genai
from tests.gateway.upstreams import KEYS as LISTS
from tests.gateway.upstreams import Raw, Recorded, wait_for
from tests.provider import Script
from tests.provider.sdk_agent import MODELS, TRUST, Driver
from tests.provider.signatures import unmarked

import kompakt

RULE = "Never touch the migrations folder."
TASK = f"Go through the repository and write down what you find. {RULE}"
SECRET_KEY = "sk-upstream-credential-0123456789"
LINES = 8
EACH_WHOLE = 7
"""One result of this many is restored completely, byte for byte; of every result a passage is found."""


def needle(id: str) -> str:
    """Return a word that only one result contains."""
    return "needle" + hashlib.sha256(id.encode()).hexdigest()[:12]


def result_of(id: str, lines: int = LINES) -> str:
    """Return what a tool answers: lines as of a file, the middle one with the needle."""
    rows = [f"{at}: value_{at} = compute(total, {at}) in module {id[-7:]}" for at in range(lines)]
    rows[lines // 2] = f"the marker here is {needle(id)} and occurs only once"
    return "\n".join(rows)


class Talk(Driver):
    """A driver whose tools answer at some length and who keeps the headers of every response."""

    def __init__(
        self, url: str, format: str, *, stream: bool = False, headers: dict[str, str] | None = None, lines: int = LINES
    ) -> None:
        where: Any = SimpleNamespace(url=url)
        super().__init__(where, format, stream=stream, model=MODELS.get(format, "test-model"))
        self._options = {"api_key": SECRET_KEY, "max_retries": 0, "timeout": 30}
        self._headers, self.lines = headers or {}, lines
        self.answers: list[dict[str, str]] = []
        self.calls: list[str] = []

    def _keep(self, response: Any) -> None:
        self.answers.append({"status": str(response.status_code), **dict(response.headers)})

    def _web(self) -> dict[str, Any]:
        return {"verify": TRUST, "event_hooks": {"response": [self._keep]}}

    @cached_property
    def openai(self) -> openai.OpenAI:
        client = openai.DefaultHttpxClient(**self._web())
        return openai.OpenAI(
            base_url=f"{self._url}/v1", http_client=client, default_headers=self._headers, **self._options
        )

    @cached_property
    def anthropic(self) -> anthropic.Anthropic:
        client = anthropic.DefaultHttpxClient(**self._web())
        return anthropic.Anthropic(
            base_url=self._url, http_client=client, default_headers=self._headers, **self._options
        )

    @cached_property
    def genai(self) -> genai.Client:
        options: Any = {
            "base_url": self._url,
            "timeout": 30_000,
            "headers": self._headers,
            "client_args": self._web(),
            "async_client_args": {"verify": TRUST},
        }
        return genai.Client(api_key=SECRET_KEY, vertexai=False, http_options=options)

    def step(self) -> bool:
        """Send the history; the results of the calls made are long ones."""
        before = len(self.items)
        if self.format == "openai-responses":  # past the SDK's own reading of every item, which takes most of the time
            self.extra = {**self.extra, "input": "", "extra_body": {"input": self.items}}
        made = super().step()
        self.items[before:] = [self._filled(item) for item in self.items[before:]]
        return made

    def _filled(self, value: Any) -> Any:
        if isinstance(value, str) and value.startswith("result of "):
            self.calls.append(id := value.removeprefix("result of "))
            return result_of(id, self.lines)
        if isinstance(value, list):
            return [self._filled(inner) for inner in value]
        if isinstance(value, dict):
            return {key: self._filled(inner) for key, inner in value.items()}
        return value

    @property
    def session(self) -> str:
        """The session that the gateway named last."""
        return self.answers[-1]["x-kompakt-session"]

    @property
    def compacted(self) -> list[int]:
        """The numbers of the requests that were compacted, from 0."""
        return [at for at, one in enumerate(self.answers) if "x-kompakt-compaction" in one]


def items_of(raw: Raw, format: str) -> list[Any]:
    """Return the messages of a request, without marks for the cache."""
    return unmarked(raw.json[LISTS[format]])


def head_of(raw: Raw, format: str) -> dict[str, Any]:
    """Return all of a request but its messages."""
    return unmarked({key: value for key, value in raw.json.items() if key != LISTS[format]})


def breaks(asked: list[Raw], format: str) -> list[int]:
    """Return the indexes of the requests that do not start with the previous one."""
    found = []
    for at, (one, two) in enumerate(pairwise(asked)):
        before, after = items_of(one, format), items_of(two, format)
        if after[: len(before)] != before or head_of(one, format) != head_of(two, format):
            found.append(at + 1)
    return found


def holds(provider: Recorded, talk: Talk) -> None:
    """Assert the invariants of any session through the gateway."""
    assert [record.refusal for record in provider.refusals] == []
    assert provider.violations == []
    assert provider.overflows == []
    assert len(provider.asked) == len(talk.answers)
    assert all(one["status"] == "200" for one in talk.answers)
    broken = set(breaks(provider.asked, talk.format)) - set(talk.compacted)
    assert not broken, f"requests {sorted(broken)} do not start with the previous one; compacted: {talk.compacted}"
    assert {one["x-kompakt-session"] for one in talk.answers} == {talk.session}
    announced = [talk.answers[at]["x-kompakt-compaction"] for at in talk.compacted]
    # only the request that caused a compaction reports it
    assert len(set(announced)) == len(announced), f"reported twice: {announced} in {talk.compacted}"


async def _reaches(session: Any, id: str, lines: int, *, whole: bool) -> bool:
    """Return whether a word of a result finds its passage and, if ``whole``, its reference restores the result."""
    passage = await session.recall(needle(id))
    if not whole:
        return needle(id) in passage.text
    for reference in passage.references if needle(id) in passage.text else ():
        if result_of(id, lines) in (await session.recall(reference.partition(":")[0], None)).text:
            return True
    return False


async def _recalled(store: str, tenant: str, session: str, calls: list[str], lines: int) -> list[str]:
    opened = await kompakt.open_store(store, tenant=tenant)
    try:
        found = await opened.session(session)
        if not await found.exists():
            return calls
        return [id for at, id in enumerate(calls) if not await _reaches(found, id, lines, whole=at % EACH_WHOLE == 0)]
    finally:
        await opened.close()


def all_recalled(store: str, tenant: str, talk: Talk) -> None:
    """Assert that every result can be recalled; recording continues for a moment after the answer."""
    left = list(talk.calls)

    def is_done() -> bool:
        left[:] = asyncio.run(_recalled(store, tenant, talk.session, left, talk.lines))
        return not left

    try:
        wait_for(is_done, f"all {len(talk.calls)} results are recalled", seconds=120)
    except TimeoutError as error:
        raise AssertionError(f"{error}; missing: {left}") from None


def scripted(steps: int, **options: Any) -> Script:
    return Script(steps=steps, **{"seed": 3, "constraints": (RULE,), **options})
