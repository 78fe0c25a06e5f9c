"""Peak memory while a large history is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import SOURCE
from tests.histories import plain

MEGABYTES = 200
MAX_TIMES = 10
"""Peak memory over the size of the file: bytes read, values decoded, messages parsed, and some air."""

MEASURE = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "kompakt", "check", sys.argv[1]], capture_output=True, text=True)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.stderr.write(done.stderr)
"""


def write_session(path: Path, megabytes: int) -> None:
    """Write a valid session of that size, message by message."""
    body = plain.build("openai-chat", messages=2_000, mean_chars=2_000)
    system, *talk = body["messages"]
    turn = ",".join(json.dumps(message) for message in talk)
    with path.open("w") as file:
        file.write('{"model": "gpt-5.4", "messages": [' + json.dumps(system))
        while file.tell() < megabytes * 1_000_000:
            file.write("," + turn)
        file.write("]}")


@pytest.mark.slow
def test_check_needs_at_most_ten_times_the_file(tmp_path: Path) -> None:
    """`kompakt check` on 200 MB succeeds, and its peak memory is bounded by the size of the file."""
    path = tmp_path / "large.json"
    write_session(path, MEGABYTES)
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, env=environment, check=True
    )
    code, peak_kilobytes = map(int, done.stdout.split())
    assert code == 0, done.stderr
    assert "no problems" in done.stderr
    # macOS reports bytes where Linux reports kilobytes.
    peak = peak_kilobytes if sys.platform == "darwin" else peak_kilobytes * 1024
    assert peak <= MAX_TIMES * path.stat().st_size
