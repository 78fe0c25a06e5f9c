"""The cost of whole sessions: prices, replays, the clairvoyant and the goals."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evals.sample_sessions import Script, long, write_transcript

from kompakt.engine.compaction.cost import Economy, Prices
from kompakt.engine.context.context import Context
from kompakt.evals.case import Recording, record
from kompakt.evals.measures.bills import (
    BY_DEFAULT,
    CLAIRVOYANT,
    ECONOMIC,
    FULL,
    READS,
    SAVED,
    UNTOUCHED_READS,
    WORST,
    BilledRequest,
    above_half,
    clairvoyant,
    cost_of_everything,
    economic,
    measure_bills,
    replay,
    requests,
)
from kompakt.evals.measures.score import ResultRow
from kompakt.evals.results import goals, metrics
from kompakt.evals.run import EvalSettings, run
from kompakt.evals.session_files import read, sessions
from kompakt.model.budget import Budget
from kompakt.wire.transcripts.transcript import seconds

WIDE = Budget(window=1_000_000, trigger=900_000, target=450_000)


def rewrite_always(step: int, economy: Economy, context: Context, one: BilledRequest) -> int | None:
    return economy.goal(context.projected_tokens)


@pytest.fixture(scope="module")
def recording() -> Recording:
    """Return a session of some 60,000 tokens."""
    return record(long(60, filler=2_400).session())


class TestRequests:
    def test_one_request_per_answer(self) -> None:
        """Consecutive assistant messages belong to one answer."""
        script = (
            Script().user("Read it, please.").call("Read", {"path": "a"}, "one two").reply("Done.").reply("Really.")
        )
        asked = requests(record(script.session()))
        assert [one.at for one in asked] == [1, 3]
        assert 0 < asked[0].total < asked[1].total
        assert all(one.output > 0 and one.now is None for one in asked)

    def test_times_come_from_timestamps_of_the_recording(self, tmp_path: Path) -> None:
        """Claude Code stamps records, pi stamps entries."""
        write_transcript(tmp_path / "a.jsonl", Script().user("Begin now.").reply("Yes."))
        records = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
        stamped = [{**one, "timestamp": f"2025-01-01T00:0{index}:00Z"} for index, one in enumerate(records)]
        stamped.append({**stamped[-1], "uuid": "later", "timestamp": "2025-01-01T00:09:00Z"})
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, stamped)))
        entries = [
            {"type": "session", "id": "x"},
            {"type": "message", "message": {"role": "user", "content": "Begin."}, "timestamp": "2025-01-01T00:00:00Z"},
            {
                "type": "message",
                "message": {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
                "timestamp": "2025-01-01T00:01:00Z",
            },
        ]
        (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, entries)))
        (one,) = read(tmp_path / "a.jsonl", name="a")
        (two,) = read(tmp_path / "b.jsonl", name="b")
        assert one.times == two.times == ((1, seconds("2025-01-01T00:01:00Z")),)
        assert requests(record(one))[0].now == seconds("2025-01-01T00:01:00Z")

    @pytest.mark.parametrize("stamp", [None, 12, "yesterday", {}])
    def test_invalid_timestamps_are_ignored(self, stamp: object) -> None:
        assert seconds(stamp) is None


class TestReplay:
    def test_cost_of_sending_everything(self) -> None:
        """New tokens are written, old ones read, and all are written again after the cache expired."""
        asked = [BilledRequest(1, 1_000, 10, 0.0), BilledRequest(3, 1_500, 20, 60.0), BilledRequest(5, 1_600, 0, 600.0)]
        bill = cost_of_everything(asked, Prices())
        assert bill.paid == pytest.approx(1_250 + 50 + 100 + 625 + 100 + 2_000)
        assert (bill.reads, bill.writes, bill.peak) == (1_000, 3_100, 1_600)

    def test_a_context_that_never_fills_costs_as_much_as_sending_everything(self, recording: Recording) -> None:
        asked = requests(recording)
        whole = cost_of_everything(asked, Prices())
        found = replay(recording, asked, "default", WIDE, Prices())
        assert (found.rewrites, found.reads, found.peak) == (0, whole.reads, whole.peak)
        assert found.paid == pytest.approx(whole.paid)
        assert found.dearest == pytest.approx(1)

    def test_a_full_context_is_rewritten(self, recording: Recording) -> None:
        asked = requests(recording)
        budget = Budget.of(20_000)
        found = replay(recording, asked, "default", budget, Prices())
        assert found.rewrites > 1
        assert found.peak <= 20_000
        assert found.untouched == pytest.approx(cost_of_everything(asked, Prices()).paid)

    def test_the_economic_trigger_saves_and_never_costs_more_than_one_percent(self, recording: Recording) -> None:
        found = replay(recording, requests(recording), "default", WIDE, Prices(), schedule=economic)
        assert found.rewrites > 0
        assert found.paid < 0.9 * found.untouched
        assert found.dearest <= 1.01

    def test_a_rewrite_that_costs_too_much_is_rolled_back(
        self, recording: Recording, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        undone: list[bool] = []
        back = Context.rollback

        def rollback(context: Context, snapshot: object) -> None:
            shown = list(context.project())
            back(context, snapshot)  # pyright: ignore[reportArgumentType]
            undone.append(shown != list(context.project()) == list(context.messages))

        asked = requests(recording)
        whole = cost_of_everything(asked, Prices())
        monkeypatch.setattr(Economy, "keeps", lambda *_, **__: False)
        monkeypatch.setattr(Context, "rollback", rollback)
        found = replay(recording, asked[:40], "default", WIDE, Prices(), schedule=rewrite_always)
        assert found.rewrites == 40
        found = replay(recording, asked, "default", WIDE, Prices(), schedule=economic)
        assert undone
        assert all(undone)
        assert (found.rewrites, found.paid) == (0, pytest.approx(whole.paid))


class TestDefault:
    def test_nothing_is_rewritten_below_half_of_the_window(self, recording: Recording) -> None:
        asked = requests(recording)
        peak = asked[-1].total
        roomy = Budget(window=3 * peak, trigger=2 * peak + 1, target=peak, relative=True)
        assert replay(recording, asked, "default", roomy, Prices(), schedule=above_half(roomy)).rewrites == 0
        assert replay(recording, asked, "default", roomy, Prices(), schedule=economic).rewrites > 0

    def test_above_half_it_goes_no_further_down_than_usual(self, recording: Recording) -> None:
        asked = requests(recording)
        peak = asked[-1].total
        tight = Budget(window=peak // 2, trigger=peak // 2, target=peak // 4, relative=True)
        found = replay(recording, asked, "default", tight, Prices(), schedule=above_half(tight))
        assert found.rewrites > 0
        assert found.paid < found.untouched
        eager = replay(recording, asked, "default", tight, Prices(), schedule=economic)
        assert min(found.left) > min(eager.left)


class TestClairvoyant:
    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 40_000), st.sampled_from([1, 1, 1, 900])), min_size=1, max_size=8))
    def test_the_plan_is_optimal(self, trace: list[tuple[int, int]]) -> None:
        """Compared with every other schedule."""
        asked: list[BilledRequest] = []
        total, now = 0, 0
        for new, pause in trace:
            total, now = total + new, now + pause
            asked.append(BilledRequest(0, total, 0, float(now)))
        plan = clairvoyant(asked, Economy())
        costs = {
            frozenset(step for step, chosen in enumerate(choice) if chosen): cost
            for choice in product((False, True), repeat=len(trace))
            if (cost := _priced(trace, choice)) is not None
        }
        assert costs[plan] == pytest.approx(min(costs.values()))

    def test_a_short_session_needs_no_rewrites(self) -> None:
        assert clairvoyant([BilledRequest(0, 500 * step, 0) for step in range(1, 9)], Economy()) == frozenset()


def _priced(trace: list[tuple[int, int]], choice: tuple[bool, ...]) -> float | None:
    economy, carried, total, paid = Economy(), 0, 0, 0.0
    for step, (new, pause) in enumerate(trace):
        left = max(economy.least, int(economy.share * total))
        if choice[step]:
            if carried <= left:
                return None
            paid, carried = paid + 1.25 * (left + new), left + new
        else:
            rate = 1.25 if step == 0 or pause > economy.prices.life else 0.1
            paid, carried = paid + rate * carried + 1.25 * new, carried + new
        total += new
    return paid


class TestReport:
    def test_one_row_per_mode(self, recording: Recording) -> None:
        """The clairvoyant is the cheapest."""
        rows = {row.mode: row for row in measure_bills(recording, "default")}
        assert list(rows) == [FULL, BY_DEFAULT, ECONOMIC, CLAIRVOYANT]
        assert rows[FULL].passed[SAVED] == 0
        assert 0 < rows[ECONOMIC].passed[SAVED] <= rows[CLAIRVOYANT].passed[SAVED]
        assert rows[ECONOMIC].total[SAVED] == rows[FULL].total[SAVED] > 0
        assert rows[FULL].share(READS) == rows[FULL].share(UNTOUCHED_READS)
        assert (rows[ECONOMIC].share(WORST) or 0) >= -0.01
        assert "rewrites" in rows[ECONOMIC].note

    def test_a_session_without_answers_has_no_bill(self) -> None:
        assert list(measure_bills(record(Script().user("Is anybody there?").session()), "default")) == []

    def test_bill_goals(self) -> None:
        mine = _row(ECONOMIC, saved=55, worst=-1, reads=90)
        best = _row(CLAIRVOYANT, saved=58, worst=0, reads=90)
        found = _judged([mine, best])
        assert found["bill, saved on long sessions"] is True
        assert found["bill, least saved at any moment"] is True
        assert found["bill, of the clairvoyant's"] is True
        assert found["cache, of the untouched share"] is False
        found = _judged([_row(ECONOMIC, saved=40, worst=-2, reads=95), best])
        assert found["bill, saved on long sessions"] is False
        assert found["bill, least saved at any moment"] is False
        assert found["bill, of the clairvoyant's"] is False
        assert found["cache, of the untouched share"] is True
        assert _judged([])["bill, of the clairvoyant's"] is None

    def test_sessions_are_priced_only_on_request(self, tmp_path: Path) -> None:
        folder = tmp_path / "data"
        folder.mkdir()
        write_transcript(folder / "priced.jsonl", long(25))
        assert len(list(sessions(folder))) == 1
        rows = run(EvalSettings(data=folder, out=tmp_path / "out", jobs=1, bill=True))
        assert [row.mode for row in rows if row.measure == "bill"] == [FULL, BY_DEFAULT, ECONOMIC, CLAIRVOYANT]
        assert all(row.measure != "bill" for row in run(EvalSettings(data=folder, out=tmp_path / "out", jobs=1)))


def _row(mode: str, *, saved: int, worst: int, reads: int) -> ResultRow:
    passed = {SAVED: saved, WORST: worst, READS: reads, UNTOUCHED_READS: 96}
    return ResultRow(
        measure="bill", mode=mode, session="a", source="x", passed=passed, total=dict.fromkeys(passed, 100),
        tokens=150_000, budget=168_000,
    )  # fmt: skip


def _judged(rows: list[ResultRow]) -> dict[str, bool | None]:
    return {goal.name: goal.reached for goal in goals(metrics(rows), rows)}
