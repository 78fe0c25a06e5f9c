"""Lookups of one tool become a table of the values that matter; an unread list of records loses nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.engine.ledger.sample_ledgers import did, room_for, section, write, written
from tests.histories.messages import assistant, user

import kompakt
from kompakt.engine.ledger import lookups
from kompakt.engine.ledger.extract.records import decoded_records, whole_table
from kompakt.engine.ledger.items import FINDINGS, LOOKED, STATE
from kompakt.model.messages import Message


def order(number: str, price: int, *, status: str = "shipped", site: str = "north") -> dict[str, Any]:
    return {
        "order_id": number,
        "status": status,
        "created_at": "2024-05-11T08:28:51",
        "items": [{"sku": f"K{number[1:]}", "price": price, "weight": 3}],
        "warehouse": site,
    }


def orders(*records: dict[str, Any]) -> list[Message]:
    found = [did({"order_id": record["order_id"]}, json.dumps(record), name="get_order") for record in records]
    return [user("What is the price of my orders, and their status?"), *(part for pair in found for part in pair)]


class TestTables:
    def test_lookups_of_one_tool_share_their_keys(self) -> None:
        text = write(orders(order("W100", 12), order("W200", 40, status="open")))
        assert "get_order → order_id | status | items (price):" in text
        assert section(text, LOOKED) == ["W100 | shipped | 12", "W200 | open | 40"]

    def test_columns_that_were_never_mentioned_are_omitted(self) -> None:
        text = write(orders(order("W100", 12), order("W200", 40)))
        assert "warehouse" not in text and "2024-05-11" not in text and "weight" not in text

    def test_a_value_given_to_a_call_is_kept(self) -> None:
        looked = orders(order("W100", 12), order("W200", 40, site="south"))
        assert "| north |" not in write(looked)
        assert "| north" in write([*looked, *did({"q": "north"}, "none", name="get_site")])

    def test_objects_that_were_looked_up_win_over_results_of_a_search(self) -> None:
        names = [f"K{n}00" for n in range(1, 9)]
        found = [{"sku": name, "price": 120 + n, "status": f"in {n} days"} for n, name in enumerate(names)]
        search = did({"price": "low"}, json.dumps(found), name="search_items")
        history = [*orders(order("W100", 12), order("W200", 40)), *search, *did({"skus": names}, name="order_items")]
        assert room_for(history, "W100 |") < room_for(history, "K800 |")

    def test_where_room_is_short_rows_become_narrow_before_any_is_lost(self) -> None:
        """Every order with its price is worth more than one order with everything."""

        def booked(number: int) -> dict[str, Any]:
            people = [{"first_name": "Ann", "last_name": "Lee"}, {"first_name": "Bo", "last_name": "Day"}]
            legs = [{"origin": "OSL", "destination": "ROM", "flight": f"HA{number}7", "price": 100 + number}]
            return {"booking_id": f"W{number}00", "kind": "one way", "legs": legs, "passengers": people}

        spoken = user("What is the price of each of my flights? Keep kind, passengers, origin and destination.")
        found = [did({"id": f"W{n}00"}, json.dumps(booked(n)), name="get_booking") for n in range(1, 9)]
        messages = [spoken, *(message for pair in found for message in pair)]
        wide = section(write(messages), LOOKED)
        assert wide[0] == "W100 | OSL/ROM/HA17/101"
        narrow = section(write(messages, 220), LOOKED)
        assert len(narrow) == 8 and narrow[0] == "W100 | HA17/101"

    def test_of_a_search_the_record_that_occurs_elsewhere_is_kept(self) -> None:
        stock = [{"sku": f"K{number}00", "price": number} for number in range(1, 9)]
        history = [
            *orders(order("W100", 12), order("W200", 40)),
            *did({"q": "boots"}, json.dumps(stock), name="search_stock"),
            *did({"q": "shoes"}, json.dumps(stock[1:3]), name="search_stock"),
        ]
        text = write(history)
        assert "search_stock → sku | price:" in text
        assert "K100 | 1; K200 | 2" in text and "K700" not in text

    def test_only_the_newest_answers_are_read_when_they_are_huge(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The work follows a bound on the text, not the length of the history."""
        read: list[int] = []
        monkeypatch.setattr(lookups, "MAX_RECORDS_TEXT", 5_000)
        monkeypatch.setattr(lookups, "decoded_records", lambda text: read.append(len(text)) or decoded_records(text))
        write(orders(*(order(f"W{number}", number) for number in range(100, 300))))
        assert 0 < sum(read) <= 5_000

    def test_a_later_pass_keeps_the_table(self) -> None:
        text = write(orders(order("W100", 12), order("W200", 40, status="open")))
        assert section(write([], earlier=text), LOOKED) == section(text, LOOKED)

    def test_read_only_calls_are_stated_as_such(self) -> None:
        looked = orders(order("W100", 12), order("W200", 40))
        assert written(looked, STATE) == ["All calls so far were lookups and changed nothing: get_order (2)"]
        changed = [*looked, *did({"order_id": "W100"}, '{"status": "cancelled"}', name="cancel_order")]
        assert written(changed, STATE) == ["cancel_order(order_id W100) → status cancelled"]


BOOKED: dict[str, Any] = {
    "booking_id": "B10",
    "cabin": "business",
    "legs": [{"leg": "X1", "date": "2030-01-02", "price": 900}, {"leg": "X2", "date": "2030-01-03", "price": 80}],
    "payments": [{"method": "card_1", "amount": 980}],
    "seats": {"window": 1, "aisle": 0},
}


class TestRecordChanges:
    """A call that changes an object outside is stated with the values before and after."""

    def looked_up(self) -> list[Message]:
        return did({"booking_id": "B10"}, json.dumps(BOOKED), name="get_booking")

    def changed(self, given: dict[str, object], name: str = "update_booking", **fields: object) -> list[Message]:
        own = {} if name == "book" else {"booking_id": "B10"}
        return did({**own, **given}, json.dumps({**BOOKED, **fields}), name=name)

    def test_values_before_and_after(self) -> None:
        legs = [{"leg": "X1", "date": "2030-01-02", "price": 140}, BOOKED["legs"][1]]
        paid = [*BOOKED["payments"], {"method": "card_1", "amount": -760}]
        seats = {"window": 0, "aisle": 0}
        call = self.changed({"cabin": "economy"}, cabin="economy", legs=legs, payments=paid, seats=seats)
        assert written([*self.looked_up(), *call], STATE) == [
            "update_booking B10: cabin business → economy; legs X1 price 900 → 140; payments + card_1/-760; "
            "seats window 1 → 0"
        ]

    def test_an_argument_that_the_answer_does_not_bear_out_is_named(self) -> None:
        assert written([*self.looked_up(), *self.changed({"cabin": "economy"})], STATE) == [
            "update_booking B10: asked for cabin economy; no difference in the answer"
        ]

    def test_other_items_in_a_list_are_stated_as_they_are_now(self) -> None:
        call = self.changed({}, legs=[{"leg": "Y7", "date": "2030-02-01", "price": 70}])
        [said] = written([*self.looked_up(), *call], STATE)
        assert said == "update_booking B10: legs now Y7/2030-02-01/70"

    def test_new_objects_are_stated_once_and_then_by_what_differs(self) -> None:
        made = self.changed({"notify": "by mail"}, "book", status="open")
        again = self.changed({}, "book", booking_id="B11", status="open", cabin="economy")
        same = self.changed({}, "book", booking_id="B12", status="open", cabin="economy")
        first, second, third = written([*made, *again, *same], STATE)
        assert first.startswith(
            "book(notify by mail) → booking_id B10, cabin business, legs (leg/date/price) X1/2030-01-02/900"
        )
        assert second == "book → B11, like B10, but: cabin business → economy"
        assert third == "book → B12, like B11"

    def test_tables_show_the_newest_state(self) -> None:
        other = did({"booking_id": "B20"}, json.dumps({**BOOKED, "booking_id": "B20"}), name="get_booking")
        call = self.changed({}, "cancel_booking", status="cancelled")
        rows = written([user("Cancel it."), *self.looked_up(), *other, *call], LOOKED)
        assert [row.rpartition(" | ")[2] for row in rows] == ["cancelled", "-"]

    def test_the_year_of_many_dates_is_named_once(self) -> None:
        others = [
            {**BOOKED, "booking_id": f"B2{n}", "legs": [{"leg": f"X{n}", "date": f"2030-01-0{n}"}]} for n in range(1, 4)
        ]
        calls = [m for one in others for m in did({"id": one["booking_id"]}, json.dumps(one), name="get_booking")]
        text = write([user("Which legs, on which date? Not leg X3."), *calls])
        assert "legs (leg/date) in 2030" in text and "B22 | X2/01-02" in text


class TestReports:
    REPORT = "\n".join(
        [
            "<status>completed</status>",
            "The review found one critical issue in the upload handler of the service.",
            "Files named with two dots escape the target folder because the name is not normalised.",
            "```python",
            "os.path.join(folder, name)  # not checked",
            "```",
            "The fix is to resolve the path and to compare it with the folder before writing.",
            "Two tests cover the handler today, but neither of them uses a relative name.",
            "Everything else that was read looks sound and follows the conventions of the project.",
            "Severity is high because the handler is reachable without a login from the network.",
            "The second finding is minor: error messages show the full path of the folder to callers.",
            "REMINDER: You must include the sources above in your response to the user, as links.",
            "--- RESULT ---",
        ]
    )

    def test_the_prose_of_a_sub_agent_is_quoted_with_its_origin(self) -> None:
        found = written([user("Review it."), *did({"task_id": "a1"}, self.REPORT, name="TaskOutput")], FINDINGS)
        assert len(found) == 1
        assert "REMINDER" not in found[0] and "RESULT" not in found[0]
        assert found[0].startswith('TaskOutput reported: "The review found one critical issue')
        assert "os.path.join" not in found[0] and "<status>" not in found[0]

    def test_the_start_of_a_sub_agent_is_no_change(self) -> None:
        call = did({"description": "Security review", "prompt": "Review " * 90}, "Launched.", name="Task")
        assert section(write([user("Review it."), *call]), LOOKED) == ['Started Task: "Security review"']


class TestUnreadLists:
    def test_a_large_unread_list_is_shown_as_a_table_with_every_value(self) -> None:
        flights = [
            {"flight": f"HAT{n:03}", "from": "SEA", "seats": {"economy": n, "business": 2 * n}, "price": 100 + n}
            for n in range(40)
        ]
        call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        filler = [{"role": role, "content": "word " * 300} for _ in range(8) for role in ("user", "assistant")]
        history = [
            *filler,
            {"role": "user", "content": "find a flight"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": json.dumps(flights)},
        ]
        result = kompakt.compact(history, 3_200, format="openai-chat")
        shown = result.payload[-1]["content"]
        assert "always: from SEA" in shown and "flight | seats (economy/business) | price" in shown
        for n, flight in enumerate(flights):
            assert f"{flight['flight']} | {n}/{2 * n} | {100 + n}" in shown

    @pytest.mark.parametrize(
        "output",
        [
            "[1, 2, 3]",
            '[{"a": 1}]',
            '{"a": 1}',
            '[{"a": "x | y"}, {"a": "z"}]',
            '[{"a": "line\\nbreak"}, {"a": "z"}]',
            json.dumps([{"a": "long " * 40}, {"a": "z"}]),
        ],
    )
    def test_what_a_table_could_not_show_without_loss_stays_json(self, output: str) -> None:
        assert whole_table(output) is None


def test_statements_are_not_lookups() -> None:
    assert written([user("Get the price."), assistant("The price is 12.")], STATE) == []
