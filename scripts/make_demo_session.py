"""Make the two sessions that kompakt brings along: one broken, one long and healthy.

Usage: python scripts/make_demo_session.py [DIR]. Writes broken-session.json (an Anthropic request, cut off and cut up)
and long-session.json (an OpenAI Chat request). All of it is invented; equal seeds give equal bytes.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from demo_project import MODULES, Bug, Project, test_path

DATA = Path(__file__).parent.parent / "src" / "kompakt" / "data"

SYSTEM = (
    "You are a coding agent in the repository of Tidewatch, a harbour booking service. Work in small steps. Read "
    "before you edit, run the tests after each change, keep the todo list current, and say plainly what you did not do."
)

Item = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A tool call and what came back."""

    name: str
    input: Item
    output: str
    failed: bool = False


@dataclass(frozen=True)
class Step:
    """One answer of the model: a thought, a line, calls."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    thought: str = ""


@dataclass(frozen=True)
class Task:
    """One request of the user, the bug behind it and the words at its end."""

    request: str
    bug: Bug
    because: str
    answer: str
    also: tuple[str, ...] = field(default=())
    """Other files that are worth a look."""


def _bug(path: str, function: str, source: str, wrong: str, right: str, test: str, error: str) -> Bug:
    return Bug(path, function, source.lstrip("\n"), wrong, right, test, error)


TASKS = (
    Task(
        "Two boats got berth C14 for the same night. Please find out why, and fix it. Don't touch the migrations; "
        "they have already run in every harbour. Always run the whole suite before you say that you are done.",
        _bug(
            "tidewatch/berths/conflicts.py",
            "overlaps",
            '''
def overlaps(first: Stay, second: Stay) -> bool:
    """Tell whether two stays want the same berth at the same time."""
    if first.berth_id != second.berth_id:
        return False
    begins, ends = max(first.start, second.start), min(first.end, second.end)
    return begins.date() < ends.date()
''',
            "    return begins.date() < ends.date()",
            "    return begins < ends",
            "test_same_night_is_a_conflict",
            "AssertionError: assert False == True",
        ),
        "two stays within one night have equal dates, so comparing dates finds no overlap",
        "The double booking came from `overlaps` in tidewatch/berths/conflicts.py: it compared dates, and two stays "
        "within one night have the same date. It now compares the times themselves. The migrations are as they were.",
        ("tidewatch/berths/allocation.py", "tidewatch/berths/calendar.py", "tidewatch/api/routes.py"),
    ),
    Task(
        "Good. Next: skippers say the tide windows are an hour late since the clocks changed. Make sure that stored "
        "times stay in UTC; only what is shown may be local.",
        _bug(
            "tidewatch/tides/windows.py",
            "window_for",
            '''
def window_for(vessel: Vessel, station: Station, day: date) -> Window | None:
    """Return when the water over the sill is deep enough for a vessel, in UTC."""
    needed = vessel.draught + station.sill + SLACK
    readings = [one for one in station.readings if one.at.astimezone(station.zone).date() == day]
    open_at = [one.at.replace(tzinfo=UTC) for one in readings if one.depth >= needed]
    return Window(min(open_at), max(open_at)) if open_at else None
''',
            "    open_at = [one.at.replace(tzinfo=UTC) for one in readings if one.depth >= needed]",
            "    open_at = [one.at.astimezone(UTC) for one in readings if one.depth >= needed]",
            "test_window_after_the_clocks_change",
            "AssertionError: assert Window(05:10, 07:40) == Window(04:10, 06:40)",
        ),
        "`replace(tzinfo=UTC)` relabels a local time instead of converting it",
        "Windows are right again: `window_for` relabelled local times as UTC; now it converts them. Nothing that is "
        "stored has changed its meaning, and I left the display code alone.",
        ("tidewatch/tides/tables.py", "tidewatch/tides/forecast.py", "tidewatch/vessels/draught.py"),
    ),
    Task(
        "The harbour office got an invoice over 0.00 and the customer paid it. An invoice without lines must never be "
        "sent. You should not change the public names in tidewatch/billing/invoices.py, two other teams import them.",
        _bug(
            "tidewatch/billing/invoices.py",
            "sendable",
            '''
def sendable(invoices: Iterable[Invoice]) -> list[Invoice]:
    """Choose the invoices that may go out tonight."""
    today = clock.today()
    due = [one for one in invoices if one.due <= today and not one.sent]
    return [one for one in due if one.total >= 0]
''',
            "    return [one for one in due if one.total >= 0]",
            "    return [one for one in due if one.lines and one.total > 0]",
            "test_empty_invoice_stays_here",
            "AssertionError: assert [Invoice('INV-004711')] == []",
        ),
        "a total of zero passes `>= 0`, and nobody looks at the lines",
        "Empty invoices stay here now: `sendable` wants at least one line and a total above zero. Public names are "
        "unchanged. INV-004711 itself still has to be cancelled by hand; I did not touch data.",
        ("tidewatch/billing/ledger.py", "tidewatch/billing/tariffs.py", "tidewatch/jobs/nightly.py"),
    ),
    Task(
        "Wait, before you go on: the nightly import stops at the first bad line of station 217 and the other stations "
        "get nothing. Skip the line, log it, go on. Do not swallow errors that are not about a line.",
        _bug(
            "tidewatch/jobs/nightly.py",
            "import_all",
            '''
def import_all(stations: Iterable[Station], source: Source) -> Report:
    """Import the readings of all stations; one bad line never stops the rest."""
    report = Report()
    for station in stations:
        for number, line in source.lines(station):
            report.add(station, parse_reading(line, number))
    return report
''',
            "            report.add(station, parse_reading(line, number))",
            "            try:\n"
            "                report.add(station, parse_reading(line, number))\n"
            "            except ReadingMalformed as error:\n"
            "                report.skip(station, number, error)",
            "test_bad_line_is_skipped",
            "ReadingMalformed: station 217, line 1893: 4 fields, expected 6",
        ),
        "`parse_reading` raises and nothing in the loop catches it",
        "The import goes on after a malformed line: `import_all` catches `ReadingMalformed` only, notes the line in "
        "the report and continues. Any other error still stops the job, as you asked.",
        ("tidewatch/tides/tables.py", "tidewatch/storage/repository.py"),
    ),
    Task(
        "Now the cache. Under load we see the same window computed 40 times at once. One computation, the others wait. "
        "No new dependency please, and never hold the lock while talking to the database.",
        _bug(
            "tidewatch/storage/cache.py",
            "get_or_compute",
            '''
async def get_or_compute(key: str, compute: Compute) -> Entry:
    """Return a cached entry; when there is none, compute it once however many ask."""
    known = _entries.get(key)
    if known is not None and known.fresh():
        return known
    _entries[key] = await compute(key)
    return _entries[key]
''',
            "    _entries[key] = await compute(key)\n    return _entries[key]",
            "    task = _running.get(key)\n"
            "    if task is None:\n"
            "        task = _running[key] = asyncio.ensure_future(_fill(key, compute))\n"
            "    return await asyncio.shield(task)",
            "test_forty_callers_one_computation",
            "AssertionError: assert 40 == 1",
        ),
        "every caller that misses starts a computation of its own",
        "Callers that miss now share one task per key in `get_or_compute`; no lock is held during the query: "
        "there is no lock. No dependency was added. Still open: a failed computation is not remembered.",
        ("tidewatch/storage/repository.py", "tidewatch/tides/windows.py"),
    ),
    Task(
        "Reminders go out twice when an arrival is moved. Only the newest arrival of a stay counts. Keep it small, I "
        "have to review it tonight.",
        _bug(
            "tidewatch/jobs/reminders.py",
            "due_reminders",
            '''
def due_reminders(arrivals: Sequence[Arrival], now: datetime) -> list[Reminder]:
    """Choose the arrivals whose owners should hear from us now."""
    soon = [one for one in arrivals if now <= one.expected < now + NOTICE]
    return [Reminder(one.owner_id, one.expected) for one in soon]
''',
            "    return [Reminder(one.owner_id, one.expected) for one in soon]",
            "    newest = {one.stay_id: one for one in sorted(soon, key=attrgetter('revision'))}\n"
            "    return [Reminder(one.owner_id, one.expected) for one in newest.values()]",
            "test_moved_arrival_reminds_once",
            "AssertionError: assert 2 == 1",
        ),
        "a moved arrival leaves its earlier revision in the list",
        "One reminder a stay: `due_reminders` keeps the newest revision of each stay. The change is two lines.",
        ("tidewatch/vessels/arrivals.py", "tidewatch/vessels/registry.py"),
    ),
    Task(
        "Last one for today: quotes for boats over 12 m are too low in high season. The tariff sheet says the band "
        "includes its upper edge. Don't round before the end, and make sure the old quotes still load.",
        _bug(
            "tidewatch/billing/tariffs.py",
            "band_for",
            '''
def band_for(length: Decimal, bands: Sequence[Band]) -> Band:
    """Find the band a boat's length falls into; the upper edge belongs to the band."""
    for band in sorted(bands, key=attrgetter("upto")):
        if round(length) <= band.upto:
            return band
    raise BandMissing(length)
''',
            "        if round(length) <= band.upto:",
            "        if length <= band.upto:",
            "test_upper_edge_belongs_to_the_band",
            "AssertionError: assert Band(upto=12) == Band(upto=15)",
        ),
        "12.4 m is rounded to 12 before it is compared, so it lands in the lower band",
        "`band_for` compares the length as it is; 12.4 m is in the band up to 15 m again. Old quotes load, I ran the "
        "archive test. Rounding happens once, in `total_season`.",
        ("tidewatch/berths/pricing.py", "tidewatch/api/errors.py"),
    ),
)


class Actor:
    """Plays tasks on a project, step by step."""

    def __init__(self, random: Random, tasks: tuple[Task, ...], *, lines: int, wander: int = 0) -> None:
        self.random = random
        self.project = Project(random, tuple(task.bug for task in tasks))
        self.lines = lines
        self.wander = wander
        """Further files the actor opens before it makes up its mind."""
        self.done: list[str] = []
        self.tests = 214

    def play(self, task: Task) -> Iterator[Step]:
        """Yield the steps of one task, from the plan to the answer."""
        bug = task.bug
        yield Step(
            self._pick(
                "Let me see what is there first.", "I'll look at the code before I guess.", "Starting with a plan."
            ),
            (self._todo(task, 0), self._grep(rf"\b{bug.function}\b")),
            f"The report points at {bug.path.rsplit('/', 1)[1]}. I should find every caller of {bug.function} before I "
            "change anything, and write down what the user ruled out.",
        )
        yield from self._explore(task)
        yield Step("", (self._tests(f"pytest -q {test_path(bug)}", bug),))
        yield Step(
            f"There it is: `{bug.test}` fails with `{bug.error}`.",
            (self._read_at(bug.path, f"def {bug.function}", 14), self._log(bug)),
            f"If {task.because}, the failing test shows exactly that. The log should have the same pattern.",
        )
        yield from self._mend(task)
        yield from self._prove(task)
        yield Step(task.answer)

    def _explore(self, task: Task) -> Iterator[Step]:
        bug = task.bug
        folder = bug.path.rsplit("/", 1)[0] + "/"
        yield Step("", (self._bash(f"ls -l {folder}", self.project.tree(folder)), self._read(bug.path, 1, self.lines)))
        others = [path for path in MODULES if path not in (bug.path, *task.also)]
        for path in (*task.also, *self.random.sample(others, self.wander)):
            words = MODULES[path]
            yield Step(
                self._pick(
                    f"Perhaps `{path}` depends on it.", "And a neighbour.", "", f"What is in {path.rsplit('/', 1)[1]}?"
                ),
                (self._read(path, self._start(path), self.lines),),
            )
            if self.random.random() < 0.7:
                noun = self.random.choice(words)
                yield Step("", (self._grep(rf"{noun}_id|find_{noun}"), self._read(path, 1, self.lines // 2)))
        yield Step(
            self._pick("The data should tell.", "Let me look at real records.", "A look at what is stored."),
            (
                self._bash(
                    f"python -m tidewatch.tools.dump stays --limit {self.lines // 6}",
                    self.project.rows(self.lines // 6),
                ),
            ),
        )
        if self.random.random() < 0.6:
            command = f"python -m tidewatch.tools.replay --case {bug.test.removeprefix('test_')}"
            yield Step("", (self._bash(command, self._trace(bug), failed=True),))

    def _mend(self, task: Task) -> Iterator[Step]:
        bug = task.bug
        if self.random.random() < 0.5:
            old = bug.wrong.strip() + "  # see calendar"
            output = f"Error: the text to replace was not found in {bug.path}. Read the file again."
            yield Step("", (Call("edit", {"path": bug.path, "old": old, "new": bug.right}, output, True),))
            yield Step("I misremembered the line.", (self._read_at(bug.path, f"def {bug.function}", 12),))
        change = {"path": bug.path, "old": bug.wrong, "new": bug.right}
        yield Step(
            f"The cause is clear: {task.because}.",
            (Call("edit", change, self.project.edit(bug.path, bug.wrong, bug.right)),),
        )
        self.tests += 2
        yield Step("", (self._tests(f"pytest -q {test_path(bug)}", None), self._todo(task, 1)))

    def _prove(self, task: Task) -> Iterator[Step]:
        bug = task.bug
        yield Step("Now the whole suite, as agreed.", (self._tests("pytest -q", None),))
        yield Step(
            "",
            (
                self._bash("ruff check tidewatch", "All checks passed!"),
                self._bash("git diff --stat", f" {bug.path} | {len(bug.right.splitlines()) + 1} +-\n 1 file changed"),
            ),
        )
        yield Step("", (self._bash(f"git diff {bug.path}", self.project.diff(bug)),))
        title = f"{bug.function}: {task.because.split(',')[0]}"
        commit = f"[fix/{bug.function} {self.random.getrandbits(28):07x}] {title}\n 1 file changed"
        yield Step("", (self._bash(f"git commit -am {json.dumps(title)}", commit), self._todo(task, 2)))
        self.done.append(bug.function)

    def _pick(self, *texts: str) -> str:
        return self.random.choice(texts)

    def _start(self, path: str) -> int:
        return self.random.randrange(1, max(2, self.project.files[path].count("\n") - self.lines))

    def _read(self, path: str, start: int, count: int) -> Call:
        return Call("read", {"path": path, "offset": start, "limit": count}, self.project.read(path, start, count))

    def _read_at(self, path: str, text: str, count: int) -> Call:
        return self._read(path, max(1, self.project.line_of(path, text) - 2), count)

    def _grep(self, pattern: str) -> Call:
        return Call("grep", {"pattern": pattern}, self.project.grep(pattern, most=self.lines // 2))

    def _bash(self, command: str, output: str, *, failed: bool = False) -> Call:
        return Call("bash", {"command": command}, output + ("\nExit code 1" if failed else ""), failed)

    def _tests(self, command: str, bug: Bug | None) -> Call:
        return self._bash(command, self.project.run_tests(bug, dots=self.tests), failed=bug is not None)

    def _log(self, bug: Bug) -> Call:
        module = bug.path.removesuffix(".py").replace("/", ".")
        return self._bash(f"grep {module} var/log/tidewatch.log | tail", self.project.logs(module, self.lines // 3))

    def _trace(self, bug: Bug) -> str:
        line = self.project.line_of(bug.path, f"def {bug.function}")
        return "\n".join(
            [
                "Traceback (most recent call last):",
                '  File "tidewatch/tools/replay.py", line 61, in main',
                "    outcome = case.run(clock=frozen)",
                '  File "tidewatch/tools/cases.py", line 118, in run',
                "    return self.check(function(*self.given))",
                f'  File "{bug.path}", line {line + 4}, in {bug.function}',
                f"    {bug.wrong.splitlines()[0].strip()}",
                bug.error if not bug.error.startswith("assert") else f"AssertionError: {bug.error}",
            ]
        )

    def _todo(self, task: Task, stage: int) -> Call:
        names = (f"find the cause in {task.bug.path}", f"fix {task.bug.function}", "run the whole suite and commit")
        states = ["completed"] * stage + ["in_progress"] + ["pending"] * 2
        items = [{"task": name, "state": state} for name, state in zip(names, states, strict=False)]
        if stage == 2:
            items = [{"task": name, "state": "completed"} for name in names]
        earlier = [{"task": f"fix {name}", "state": "completed"} for name in self.done]
        return Call("todo", {"items": earlier + items}, f"{len(earlier) + len(items)} items saved")


# --- as a provider wants it --------------------------------------------------------------------------------------

PROPERTIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "read": ("Read lines of a file.", ("path", "offset", "limit")),
    "edit": ("Replace a text that stands in a file once.", ("path", "old", "new")),
    "grep": ("Search all files for a regular expression.", ("pattern",)),
    "bash": ("Run a shell command in the repository.", ("command",)),
    "todo": ("Save the list of tasks.", ("items",)),
}
TYPES = {"offset": "integer", "limit": "integer", "items": "array"}


def _schema(names: tuple[str, ...]) -> Item:
    return {
        "type": "object",
        "properties": {name: {"type": TYPES.get(name, "string")} for name in names},
        "required": list(names[:1]),
    }


def anthropic(tasks: tuple[Task, ...], random: Random, *, lines: int) -> Item:
    """Write a session as a request to Anthropic."""
    actor = Actor(random, tasks, lines=lines)
    messages: list[Item] = []
    for task in tasks:
        messages.append({"role": "user", "content": [{"type": "text", "text": task.request}]})
        for step in actor.play(task):
            messages += _anthropic_step(step, random)
    return {
        "model": "claude-opus-4-5",
        "max_tokens": 16000,
        "system": SYSTEM,
        "tools": [
            {"name": name, "description": said, "input_schema": _schema(names)}
            for name, (said, names) in PROPERTIES.items()
        ],
        "messages": messages,
    }


def _anthropic_step(step: Step, random: Random) -> list[Item]:
    content: list[Item] = []
    if step.thought:
        signature = base64.b64encode(random.randbytes(132)).decode()
        content.append({"type": "thinking", "thinking": step.thought, "signature": signature})
    if step.text:
        content.append({"type": "text", "text": step.text})
    results: list[Item] = []
    for call in step.calls:
        name = f"toolu_{random.getrandbits(48):012x}"
        content.append({"type": "tool_use", "id": name, "name": call.name, "input": call.input})
        results.append({"type": "tool_result", "tool_use_id": name, "content": call.output})
        if call.failed:
            results[-1]["is_error"] = True
    answer: Item = {"role": "assistant", "content": content}
    return [answer, {"role": "user", "content": results}] if results else [answer]


def chat(tasks: tuple[Task, ...], random: Random, *, lines: int, wander: int) -> Item:
    """Write a session as a request to OpenAI Chat."""
    actor = Actor(random, tasks, lines=lines, wander=wander)
    messages: list[Item] = [{"role": "system", "content": SYSTEM}]
    for task in tasks:
        messages.append({"role": "user", "content": task.request})
        for step in actor.play(task):
            messages += _chat_step(step, random)
    tools = [
        {"type": "function", "function": {"name": name, "description": said, "parameters": _schema(names)}}
        for name, (said, names) in PROPERTIES.items()
    ]
    messages.append({"role": "user", "content": "Thanks. What did you change today, and what is still open?"})
    return {"model": "gpt-5", "messages": messages, "tools": tools}


def _chat_step(step: Step, random: Random) -> list[Item]:
    if not step.calls:
        return [{"role": "assistant", "content": step.text}]
    calls: list[Item] = []
    results: list[Item] = []
    for call in step.calls:
        name = f"call_{random.getrandbits(96):024x}"
        function = {"name": call.name, "arguments": json.dumps(call.input)}
        calls.append({"id": name, "type": "function", "function": function})
        results.append({"role": "tool", "tool_call_id": name, "content": call.output})
    return [{"role": "assistant", "content": step.text or None, "tool_calls": calls}, *results]


# --- breaking it -------------------------------------------------------------------------------------------------


def break_up(body: Item) -> Item:
    """Do to a session what crashes, naive trimming and eager merging do; cut it off at an open call."""
    messages: list[Item] = body["messages"]
    _forget_answer(messages, _nth(messages, 9))
    _open_call(messages, _nth(messages, 19))
    _split_results(messages, _nth(messages, 29, parallel=True))
    _text_first(messages, _nth(messages, 40))
    _empty_text(messages, _nth(messages, 47))
    _reuse_id(messages, _nth(messages, 12), _nth(messages, 53))
    cut = _nth(messages, -3)
    body["messages"] = messages[: cut + 1]
    return body


def _calls(message: Item) -> list[Item]:
    return [block for block in message["content"] if block["type"] == "tool_use"]


def _nth(messages: list[Item], number: int, *, parallel: bool = False) -> int:
    """Find an answer with calls: the one of that number, or the first with several from there on."""
    found = [i for i, message in enumerate(messages) if message["role"] == "assistant" and _calls(message)]
    if not parallel:
        return found[number]
    return next(i for i in found[number:] if len(_calls(messages[i])) > 1)


def _forget_answer(messages: list[Item], at: int) -> None:
    """Lose an answer, as trimming by message count does; its results stay behind."""
    del messages[at]


def _open_call(messages: list[Item], at: int) -> None:
    """Lose the results of a call, as an interrupted run does; the user asks instead."""
    messages[at + 1] = {"role": "user", "content": [{"type": "text", "text": "Are you still there? Please go on."}]}


def _split_results(messages: list[Item], at: int) -> None:
    """Put parallel results into messages of their own, as clients that append one by one do."""
    results = messages[at + 1]["content"]
    messages[at + 1 : at + 2] = [{"role": "user", "content": [result]} for result in results]


def _text_first(messages: list[Item], at: int) -> None:
    """Put the user's words before the results that came with them."""
    messages[at + 1]["content"].insert(0, {"type": "text", "text": "By the way, the office closes at six."})


def _empty_text(messages: list[Item], at: int) -> None:
    """Keep the empty text that a stream began and never filled."""
    messages[at]["content"].insert(0, {"type": "text", "text": ""})


def _reuse_id(messages: list[Item], first: int, second: int) -> None:
    """Give two calls one id, as gateways that count per request do."""
    name = _calls(messages[first])[0]["id"]
    call = _calls(messages[second])[0]
    for result in messages[second + 1]["content"]:
        if result.get("tool_use_id") == call["id"]:
            result["tool_use_id"] = name
    call["id"] = name


def main(arguments: list[str]) -> None:
    """Write both sessions."""
    directory = Path(arguments[0]) if arguments else DATA
    directory.mkdir(parents=True, exist_ok=True)
    broken = break_up(anthropic(TASKS[:5], Random(7), lines=22))
    long = chat(TASKS, Random(11), lines=75, wander=4)
    for name, body in (("broken-session.json", broken), ("long-session.json", long)):
        data = json.dumps(body, ensure_ascii=False, indent=1) + "\n"
        (directory / name).write_text(data, encoding="utf-8")
        print(f"{name}: {len(body['messages'])} messages, {len(data.encode()):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
