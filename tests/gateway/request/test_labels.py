"""Session labels: title, model, client and purpose."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.gateway_server import Gate, gateway
from tests.gateway.http.test_outcomes import logged
from tests.gateway.payloads import ANSWERS, FORMATS, HEADERS, PATHS, SCHEMA, answering, history, request
from tests.gateway.stub_gateway import served, settings
from tests.gateway.upstreams import Upstream, wait_for

from kompakt.errors import StoreDamaged
from kompakt.gateway.request.history import HashChain, HashChains, read
from kompakt.gateway.request.labels import client_of, purpose_of, title_of
from kompakt.store.memory import MemoryRecords

CLAUDE = "claude-cli/2.1.325 (external, cli)"


def chain_of(body: dict[str, Any], format: str) -> HashChain:
    chain = HashChains().read(json.dumps(body).encode(), format, b"root")
    assert chain is not None
    return chain


class TestTitles:
    @pytest.mark.parametrize(
        ("texts", "title"),
        [
            (["Fix the queue.\nIt stalls."], "Fix the queue."),
            (["<system-reminder>\nBe brief.\n</system-reminder>\n", "Fix the queue."], "Fix the queue."),
            (
                ["<system-reminder>Be brief.</system-reminder>\n<env a='1'>x</env>\n\nFix  the\tqueue."],
                "Fix the queue.",
            ),
            (["<div> without an end"], "<div> without an end"),
            (["word " * 40], ("word " * 40)[:79].rstrip() + "…"),
            (["   "], ""),
        ],
    )
    def test_the_first_words_of_the_task(self, texts: list[str], title: str) -> None:
        """The agent's reminders before it are skipped."""
        blocks = [{"type": "text", "text": text} for text in texts]
        body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": blocks}]}
        assert title_of(chain_of(body, "anthropic")) == title

    def test_context_messages_of_the_agent_are_skipped(self) -> None:
        """Codex sends two before the task."""
        texts = [
            "# AGENTS.md instructions for /work\n\n<INSTRUCTIONS>x</INSTRUCTIONS>",
            "<environment_context>x</environment_context>",
            "Fix the queue.",
        ]
        items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": t}]} for t in texts]
        developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]}
        assert title_of(chain_of({"model": "m", "input": [developer, *items]}, "openai-responses")) == "Fix the queue."

    @pytest.mark.parametrize("format", FORMATS)
    def test_in_every_format(self, format: str) -> None:
        assert title_of(chain_of(request(format, history(format, 2)), format)).startswith("Find out why the queue")


@pytest.mark.parametrize(
    ("agent", "client"),
    [
        (CLAUDE, "Claude Code 2.1.325"),
        ("codex_cli_rs/0.166.0 (Ubuntu 24.04; x86_64)", "Codex 0.166.0"),
        ("opencode/1.18.33 ai-sdk/x", "opencode 1.18.33"),
        ("GeminiCLI/v0.61.0/gemini-3-pro (linux; x64)", "Gemini CLI 0.61.0"),
        ("AsyncOpenAI/Python 2.8.0", "OpenAI SDK"),
        ("my-agent/7 with more", "my-agent/7"),
        ("", None),
        ("<script>", None),
    ],
)
def test_clients(agent: str, client: str | None) -> None:
    """Clients are recognised by the start of the user-agent header."""
    assert client_of(agent) == client


def chat(*messages: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": role, "content": text} for role, text in messages], **more}


def part(text: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": text}]}


TOOLS = [{"name": "read", "input_schema": SCHEMA}]
TITLER = "You are a title generator. You output ONLY a thread title. Nothing else."
LOOP = "You specialize in identifying when a conversational AI is stuck in an unproductive state. Your task is this:"
NAMING = [{"type": "text", "text": "You are naming a coding session so the user can pick it out of a long list."}]
SPEAKER = "Based *strictly* on that response, determine who should logically speak next: the 'user' or the 'model'."


class TestPurposes:
    @pytest.mark.parametrize(
        ("format", "body", "purpose"),
        [
            ("anthropic", chat(("user", "quota"), max_tokens=1), "quota-check"),
            ("anthropic", chat(("user", "<session>x</session>"), system=NAMING, max_tokens=500), "title"),
            ("openai-chat", chat(("system", TITLER), ("user", "Fix the queue.")), "title"),
            ("gemini", {"systemInstruction": part(LOOP), "contents": [part("x")]}, "loop-check"),
            ("gemini", {"contents": [part("x"), part(SPEAKER)]}, "next-speaker-check"),
            ("anthropic", chat(("user", "Fix the queue."), max_tokens=500), None),
            ("anthropic", chat(("user", "What is my quota?"), max_tokens=500), None),
            ("anthropic", chat(("user", f"Improve this prompt: {TITLER}"), max_tokens=500, tools=TOOLS), None),
        ],
    )
    def test_requests_that_are_not_part_of_a_conversation(
        self, format: str, body: dict[str, Any], purpose: str | None
    ) -> None:
        """A request with tools is always part of a conversation."""
        asked = read(json.dumps(body).encode(), format)
        assert asked is not None and purpose_of(asked, {}) == purpose

    def test_claude_code_states_the_purpose_in_a_header(self) -> None:
        asked = read(json.dumps(chat(("user", "x"), tools=TOOLS)).encode(), "anthropic")
        assert asked is not None
        assert purpose_of(asked, {"x-claude-code-request-class": "compaction"}) == "compaction"
        assert purpose_of(asked, {"x-claude-code-request-class": "main"}) is None


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as made:
        yield made


def post(gate: Gate, body: dict[str, Any], format: str = "anthropic") -> httpx.Response:
    headers = {**HEADERS[format], "user-agent": CLAUDE}
    return httpx.post(gate.url + PATHS[format], json=body, headers=headers, timeout=120)


class TestLists:
    def test_sessions_are_listed_with_their_labels(self, gate: Gate) -> None:
        answers = [
            post(gate, request("anthropic", history("anthropic", 3))),
            post(gate, request("anthropic", history("anthropic", 4))),
            post(gate, chat(("user", "quota"), max_tokens=1)),
        ]
        main, quota = answers[0].headers["x-kompakt-session"], answers[2].headers["x-kompakt-session"]

        def listed() -> dict[str, dict[str, Any]]:
            return {one["id"]: one for one in gate.get("/kompakt/sessions").json()["sessions"]}

        wait_for(lambda: all(one in listed() and listed()[one]["client"] for one in (main, quota)), "both are recorded")
        one = listed()[main]
        assert one["title"].startswith("Find out why the queue stalls.") and one["purpose"] is None
        assert (one["model"], one["client"]) == ("claude-test", "Claude Code 2.1.325")
        assert listed()[quota]["purpose"] == "quota-check" and listed()[quota]["title"] == "quota"
        assert gate.get(f"/kompakt/sessions/{main}").json()["session"] == one
        page = gate.get("/inspect/plain").text
        assert "Find out why the queue stalls." in page and "Claude Code 2.1.325" in page and "quota-check" in page

    def test_a_label_that_was_refused_is_written_after_the_next_request(self) -> None:
        class Refusing(MemoryRecords):
            refused = 0

            async def note(self, tenant: str, key: str, notes: Mapping[str, bytes], *, synced: bool = True) -> None:
                if not Refusing.refused and any(name.startswith("label ") for name in notes):
                    Refusing.refused += 1
                    raise StoreDamaged("refused")
                await super().note(tenant, key, notes, synced=synced)

        def answer(_: httpx.Request) -> httpx.Response:
            return httpx.Response(200, stream=httpx.ByteStream(json.dumps(ANSWERS["anthropic"]).encode()))

        with served(settings(), None, transport=httpx.MockTransport(answer)) as gate:
            gate.gateway.store.records.__class__ = Refusing
            for rounds in (3, 4):
                asked = request("anthropic", history("anthropic", rounds))
                answered = gate.post(PATHS["anthropic"], json=asked, headers=HEADERS["anthropic"])
                gate.run(gate.gateway.storage.flush())
            (listed,) = gate.get("/kompakt/sessions", **HEADERS["anthropic"]).json()["sessions"]
        assert (Refusing.refused, listed["id"]) == (1, answered.headers["x-kompakt-session"])
        assert listed["title"].startswith("Find out why the queue stalls.")

    def test_log_lines_name_client_and_purpose(self, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "kompakt.gateway")
        post(gate, chat(("user", "quota"), max_tokens=1))
        (facts,) = logged(caplog, 1)
        assert (facts["client"], facts["purpose"]) == ("Claude Code 2.1.325", "quota-check")

    def test_the_model_of_gemini_is_in_its_path(self, gate: Gate) -> None:
        id = post(gate, request("gemini", history("gemini", 2)), "gemini").headers["x-kompakt-session"]
        wait_for(lambda: gate.get(f"/kompakt/sessions/{id}").status_code == 200, "it is recorded")
        wait_for(lambda: bool(gate.get(f"/kompakt/sessions/{id}").json()["session"]["model"]), "it is labelled")
        assert gate.get(f"/kompakt/sessions/{id}").json()["session"]["model"] == "gemini-3-pro"
