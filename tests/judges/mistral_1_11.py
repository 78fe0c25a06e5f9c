"""The second version of an independent judge: mistral-common 1.11.0, which still forbids a user after a tool.

Two versions of one package do not go into one process, so this one lives in a folder of its own (`make` puts it there)
and judges in a subprocess. Invariant: it is the published code that judges; nothing here weighs its verdict.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(sys.prefix) / "mistral-common-1.11.0"

_SCRIPT = """
import json, sys
from mistral_common import __version__
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import MistralRequestValidatorV13, ValidationMode

assert __version__ == "1.11.0", __version__
for line in sys.stdin:
    try:
        request = ChatCompletionRequest.from_openai(json.loads(line), model="judge")
        MistralRequestValidatorV13(ValidationMode.serving).validate_request(request)
        print(json.dumps([]))
    except Exception as error:  # what it cannot even read it refuses
        print(json.dumps([repr(error)]))
"""


def judge_all(histories: list[list[dict[str, Any]]]) -> list[list[str]]:
    """Judge many lists of messages; an empty list of complaints means accepted."""
    if not FOLDER.is_dir():
        raise FileNotFoundError(f"{FOLDER} is missing: run make test, which installs mistral-common 1.11.0 there")
    lines = "".join(json.dumps(messages) + "\n" for messages in histories)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SCRIPT],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
