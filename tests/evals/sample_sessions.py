"""Small invented sessions in the format of coding agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kompakt.evals.case import EvalCase, Recording, case_at, cut_at, record
from kompakt.evals.session_files import RecordedSession

Json = dict[str, Any]


class Script:
    """Writes an Anthropic body step by step."""

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self.count = 0

    def user(self, text: str) -> Script:
        self.messages.append({"role": "user", "content": text})
        return self

    def reply(self, text: str) -> Script:
        self.messages.append({"role": "assistant", "content": [{"type": "text", "text": text}]})
        return self

    def call(self, name: str, input: Json, output: str, *, error: bool = False) -> Script:
        self.count += 1
        call_id = f"toolu_{self.count:04}"
        use = {"type": "tool_use", "id": call_id, "name": name, "input": input}
        result: Json = {"type": "tool_result", "tool_use_id": call_id, "content": output}
        if error:
            result["is_error"] = True
        self.messages.append({"role": "assistant", "content": [use]})
        self.messages.append({"role": "user", "content": [result]})
        return self

    def session(self, name: str = "invented", summaries: frozenset[int] = frozenset()) -> RecordedSession:
        return RecordedSession(
            name=name,
            source="claude-code",
            format="anthropic",
            body={"model": "claude-opus-4-5", "messages": self.messages},
            summaries=summaries,
        )

    def case(self) -> EvalCase:
        """Make a case of the whole session."""
        return whole(record(self.session()))


def whole(recording: Recording) -> EvalCase:
    """Cut after the last message."""
    return case_at(recording, cut_at(recording.history, recording.weight, len(recording.history)))


def busy() -> Script:
    """Return a session with every kind of fact."""
    script = Script()
    script.user("Fix the parser. Don't touch the migration files. It is in src/parser.py")
    script.call("Read", {"file_path": "/repo/src/parser.py"}, "1→def parse_header(line):\n2→    return line")
    script.call("Edit", {"file_path": "/repo/src/parser.py", "old_string": "line", "new_string": "row"}, "updated")
    script.call("Write", {"file_path": "/repo/src/fresh_notes.md", "content": "# notes"}, "File created")
    script.call("Bash", {"command": "pytest -q tests/test_parser.py"}, "Exit code 1\nerror: header missing", error=True)
    script.call("Bash", {"command": "go test ./..."}, "--- FAIL: TestHeader (0.00s)\nok  \texample.com/lib\t0.1s")
    script.call("Bash", {"command": "rm build/old.bin && make all"}, "total size: 4821")
    todos = [{"content": "write the tests", "status": "pending"}, {"content": "fix it", "status": "completed"}]
    script.call("TodoWrite", {"todos": todos}, "ok")
    script.call("Bash", {"command": "git commit -m 'Fix header'"}, "[main 4fa81c2] Fix header of parser")
    script.call("Bash", {"command": "git show 4fa81c2"}, "commit 4fa81c2")
    refused = "The user doesn't want to proceed with this tool use. The user said: not yet, please"
    script.call("Bash", {"command": "git push"}, refused, error=True)
    script.reply("The header is fixed; retry_limit: 250 stays.")
    return script


def long(rounds: int = 60, filler: int = 900) -> Script:
    """Return a session that is long enough to be compacted."""
    script = Script()
    script.user("Port every module to the new reader. Never rename a public function.")
    for number in range(rounds):
        path = f"/repo/src/module_{number}.py"
        body = "\n".join(f"{line}→value_{number}_{line} = compute({line})" for line in range(filler // 30))
        script.call("Read", {"file_path": path}, body)
        if number % 3 == 0:
            script.call("Edit", {"file_path": path, "old_string": "compute", "new_string": "reckon"}, "updated")
        if number % 5 == 0:
            script.call("Bash", {"command": f"pytest -q tests/test_module_{number}.py"}, "1 passed")
        if number == rounds // 2:
            script.reply("Half of it is ported.")
            script.user("Continue, but only use the standard library.")
    script.reply("All ported.")
    script.user("Now write the changelog.")
    return script


def write_transcript(path: Path, script: Script, summaries: frozenset[int] = frozenset()) -> None:
    """Write a script as a Claude Code session file."""
    lines: list[str] = []
    for index, message in enumerate(script.messages):
        record_: Json = {"type": message["role"], "uuid": f"u{index}", "sessionId": "s", "message": dict(message)}
        if message["role"] == "assistant":
            record_["message"]["id"] = f"msg_{index}"
            record_["message"]["model"] = "claude-opus-4-5"
        if index in summaries:
            record_["isCompactSummary"] = True
        lines.append(json.dumps(record_))
    path.write_text("\n".join(lines) + "\n")
