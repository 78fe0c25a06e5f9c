"""A narrative is compared with the history: what a model invents does not reach the context."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.agent.summarizer.summarizer_client import Client, count, fault_of, material, summarize
from tests.histories.messages import assistant, result, tool, user

from kompakt.agent.summarizer.verification import Evidence, shorten, verify
from kompakt.engine.pivot.pivot import Material
from kompakt.model.messages import Message, Reasoning, ToolCall, ToolResult

REFUSED = "The user doesn't want to proceed with this tool use. The user said: use the staging cluster first"
HISTORY = (
    user("Fix the rate limiter. It must never block health checks, says the runbook."),
    assistant("I read it.", ToolCall("a", "Read", {"file_path": "/srv/app/limits/bucket.py"})),
    tool(result("a", "class TokenBucket:\n    def refill(self): ...\nCAPACITY = 4500")),
    assistant(ToolCall("b", "Bash", {"command": "pytest tests/test_bucket.py -q"})),
    tool(result("b", "FAILED tests/test_bucket.py::test_refill - assert 4499 == 4500\n1 failed, 17 passed in 0.42s")),
    assistant("The refill rounds down.", ToolCall("c", "Bash", {"command": "ruff check limits"})),
    tool(result("c", "All checks passed!")),
    assistant(Reasoning("SECRET: tenants.sqlite"), ToolCall("d", "Bash", {"command": "kubectl apply -f prod.yaml"})),
    tool(ToolResult("d", REFUSED, is_error=True)),
    assistant(ToolCall("e", "book", json.dumps({"flight": "HAT204", "price": 1286.5, "card": "credit_card_7815826"}))),
    tool(result("e", '{"status": "booked", "message": "Seat \\"12A\\" confirmed"}')),
)


def checked(narrative: str, *more: Message, **fields: object) -> str:
    given = msgspec.structs.replace(material(*HISTORY, *more), **fields)  # type: ignore[arg-type]
    return verify(narrative, Evidence(given)).text


class TestSupported:
    @pytest.mark.parametrize(
        "sentence",
        [
            "The bucket is in `/srv/app/limits/bucket.py` and holds 4500 tokens.",
            "limits/bucket.py defines `TokenBucket` with `refill()`.",
            "`pytest tests/test_bucket.py -q` failed with 1 failed and 17 passed in 0.42 s.",
            'The test reported "assert 4499 == 4500".',
            'The user said "use the staging cluster first".',
            'The user asked: "Fix the rate limiter […] never block health checks".',
            "`ruff check limits` passed.",
            "Flight HAT204 costs $1,286.50 and was paid with credit_card_7815826.",
            'The answer was "Seat "12A" confirmed".',
            "The refill rounds down because integers are divided, so the fix is to carry the remainder.",
            "Three tasks are open/unclear and/or blocked.",
            "About 9,000 requests are expected, e.g. From the health checks.",
            "Die Ursache ist Rundung; 桶的容量是 4500。",
        ],
    )
    def test_a_sentence_that_the_history_bears_out_is_kept_as_it_is(self, sentence: str) -> None:
        assert checked(sentence) == sentence

    def test_everything_that_the_model_was_shown_counts(self) -> None:
        """Earlier notes, facts by code and messages that stay are evidence, too, and so are valid references."""
        given = material(*HISTORY)
        for field, value in {
            "earlier": "See docs/limits.md.",
            "facts": "- docs/limits.md: edited",
            "kept": (user("Look at docs/limits.md"),),
        }.items():
            more = {"kept_references": ("m0001",)} if field == "kept" else {}
            assert checked("The design is in docs/limits.md.", **{field: value}, **more)
        cited = f"It rounds down [{given.references[5]}]."
        assert checked(cited) == cited


class TestUnsupported:
    def test_a_number_of_thousands_of_digits_is_looked_up(self) -> None:
        """Python refuses to read integers of more than 4,300 digits."""
        number = "7" * 5_000
        assert "7777" not in checked(f"The capacity was raised to {number} tokens.")
        assert number in checked(f"The id is {number} here.", user(f"The id is {number}."))

    @pytest.mark.parametrize(
        "sentence",
        [
            "The limiter was moved to `src/throttle/gate.py`.",
            "The limiter was moved to src/throttle/gate.py.",
            "The handler is `RequestThrottler`.",
            "It calls reset_all_buckets() first.",
            "The capacity was raised to 9000 tokens.",
            "The test took 7.35 s.",
            "The change is in commit 9f8e7d6c5b.",
            "Reservation QX7T2P was cancelled.",
            'The log says "connection reset by peer".',
            'The user said "deploy it to production today".',
            'The user wrote: "All checks passed".',
            "`pytest tests/test_bucket.py -q` passed.",
            "`ruff check limits` failed.",
            "Tenants are stored in tenants.sqlite.",
        ],
        ids=lambda sentence: sentence[:40],
    )
    def test_a_sentence_that_invents_something_is_dropped(self, sentence: str) -> None:
        """Paths, names, values, ids, quotations, outcomes; statements of the reasoning alone do not count."""
        assert (
            checked(f"The refill rounds down. {sentence} It is not fixed.")
            == "The refill rounds down. It is not fixed."
        )

    def test_a_sentence_with_more_support_than_without_is_marked(self) -> None:
        said = "In limits/bucket.py `TokenBucket` holds 4500 and is logged to bucket_trace.log."
        assert checked(said) == f"{said} (not found in the record: bucket_trace.log)"

    def test_a_computed_amount_is_marked(self) -> None:
        """It cannot occur in the record, and the reader should know that."""
        assert checked("In total this saves $2,573.") == "In total this saves $2,573. (computed, not in the record)"

    def test_headings_bullets_and_layout_survive(self) -> None:
        text = (
            "## Findings\n\n- It rounds down. It is in src/no.py.\n- Only src/none.py.\n\n## Decisions\n- See a/b/c.py"
        )
        assert checked(text) == "## Findings\n\n- It rounds down."

    def test_outcomes_in_doubt_are_left_alone(self) -> None:
        """Only a plain contradiction counts: earlier states, conditions and plans say something else."""
        for said in (
            "`pytest tests/test_bucket.py -q` must pass.",
            "Until it is fixed `pytest tests/test_bucket.py -q` cannot pass.",
        ):
            assert checked(said) == said
        again = (
            assistant(ToolCall("z", "Bash", {"command": "pytest tests/test_bucket.py -q"})),
            tool(result("z", "18 passed")),
        )
        assert checked("`pytest tests/test_bucket.py -q` passed.", *again)


class TestSummarizer:
    def test_the_account_lists_dropped_sentences(self) -> None:
        given = material(*HISTORY)
        text = summarize(Client("It rounds down. The fix is in src/gone.py. Nothing is deployed."), given)
        assert text.startswith("It rounds down. Nothing is deployed.")
        assert given.account.dropped == ("The fix is in src/gone.py.",) and given.account.sentences == 2
        assert given.account.requests == 1 and given.account.model == "gpt-5"

    def test_a_narrative_without_support_is_not_used(self) -> None:
        said = "It is in src/gone.py. See src/lost.py. It rounds down."
        assert fault_of(Client(said), material(*HISTORY)) == "unsupported"

    def test_a_narrative_that_is_a_little_too_long_loses_whole_sentences(self) -> None:
        """The longest section gives way; none disappears, and nothing is cut in the middle."""
        findings = " ".join(f"Finding {n} says that the refill rounds down." for n in range(30))
        said = f"## Findings\n{findings}\n\n## Next steps\nCarry the remainder."
        text = summarize(Client(said), material(*HISTORY[1:], most=int(count(said) * 0.8)))
        assert text.startswith("## Findings\nFinding 0 says") and text.endswith("## Next steps\nCarry the remainder.")
        assert count(text) <= int(count(said) * 0.8) and "Finding 29" not in text
        assert text.split("\n")[1].endswith("rounds down.")

    @pytest.mark.parametrize("limit", [1, 5, 20, 60])
    def test_shortening_always_fits(self, limit: int) -> None:
        text = "# One\nA sentence here. Another one there.\n\n- a bullet. And more.\n```\ncode\n```\n# Two\nlast words"
        assert count(shorten(text, limit, count)) <= limit


def test_a_long_history_is_searched_in_reasonable_time() -> None:
    """A megabyte of output and hundreds of statements."""
    output = "\n".join(f"row {n} value {n * 37} path src/dir{n % 50}/file{n}.py" for n in range(25_000))
    given = Material((tool(result("x", output)),), ("m0000",), None, 1_000, len)
    narrative = " ".join(f"File src/dir{n % 50}/file{n}.py has {n * 37}." for n in range(100, 400))
    assert verify(narrative, Evidence(given)).kept == 300
