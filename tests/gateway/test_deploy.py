"""The deployment files are well formed and name existing files and settings, and the commands of the unit work.

No container is started.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.gateway.upstreams import wait_for

from kompakt.gateway.config import GatewayConfig, load
from kompakt.gateway.workers import STOP_MARGIN

FOLDER = Path(__file__).parent.parent.parent / "deploy"
INSTRUCTIONS = {
    "FROM",
    "COPY",
    "RUN",
    "ENV",
    "USER",
    "WORKDIR",
    "VOLUME",
    "EXPOSE",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "ENTRYPOINT",
}
VARIABLE = re.compile(r"KOMPAKT_([A-Z_]+)")


def instructions() -> list[tuple[str, str]]:
    """Read the container file: an instruction and its arguments on each logical line."""
    text = "".join(line for line in (FOLDER / "Containerfile").read_text().splitlines(True) if not line.startswith("#"))
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split()[0], line.split(None, 1)[1]) for line in lines]


def unit() -> configparser.ConfigParser:
    """Read the unit; a key may be there twice."""
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read(FOLDER / "kompakt-gateway.service")
    return read


def sections(name: str) -> dict[str, list[str]]:
    """Read all values of each key in a section of the unit."""
    text = (FOLDER / "kompakt-gateway.service").read_text().partition(f"[{name}]\n")[2].partition("\n[")[0]
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def compose() -> Any:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


class TestContainer:
    def test_it_is_well_formed(self) -> None:
        """Known instructions, a base first, lists that are JSON."""
        found = instructions()
        assert found[0][0] == "FROM" and {name for name, _ in found} <= INSTRUCTIONS
        for name, text in found:
            if name in ("VOLUME", "ENTRYPOINT", "CMD"):
                assert all(isinstance(part, str) for part in json.loads(text))
            if name == "HEALTHCHECK":
                command = json.loads(text.partition("CMD ")[2])
                compile(command[-1], "healthcheck", "exec")

    def test_it_runs_the_gateway_without_privileges(self) -> None:
        """On the port that the gateway has when none is named."""
        found = dict(instructions())
        assert json.loads(found["ENTRYPOINT"]) == ["kompakt", "serve"]
        assert found["USER"] == "kompakt" and found["EXPOSE"] == str(GatewayConfig().port)
        assert found["STOPSIGNAL"] == "SIGTERM"


class TestUnit:
    def test_it_serves_reloads_and_drains(self) -> None:
        """The grace period is longer than the gateway takes to finish its requests and to write what is queued."""
        service = unit()["Service"]
        assert service["ExecStart"].endswith("/kompakt serve")
        assert service["ExecReload"].endswith("-HUP $MAINPID")
        given = dict(one.split("=", 1) for one in sections("Service")["Environment"])
        assert float(service["TimeoutStopSec"]) > float(given["KOMPAKT_DRAIN"]) + STOP_MARGIN
        assert unit()["Install"]["WantedBy"] == "multi-user.target"

    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
    def test_systemd_accepts_it(self, tmp_path: Path) -> None:
        """With a command that exists here."""
        text = (FOLDER / "kompakt-gateway.service").read_text().replace("/usr/local/bin/kompakt", sys.executable)
        (copy := tmp_path / "kompakt-gateway.service").write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    def test_its_commands_start_reload_and_stop_the_gateway(self, tmp_path: Path) -> None:
        """Run by hand, with the variables of the unit: systemd is not needed."""
        service = sections("Service")
        (start,), (reload,) = service["ExecStart"], service["ExecReload"]
        given = dict(one.split("=", 1) for one in service["Environment"])
        own = {"XDG_DATA_HOME": str(tmp_path), "PYTHONPATH": str(FOLDER.parent / "src"), "KOMPAKT_PORT": "0"}
        command = [sys.executable, "-m", "kompakt", *start.split()[1:]]
        log = tmp_path / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **given, **own}, stderr=out)
        try:
            wait_for(lambda: "kompakt gateway on" in log.read_text() or process.poll() is not None, "it starts")
            (url,) = re.findall(r"kompakt gateway on (http://[^,]+), 2 workers", log.read_text())
            assert httpx.get(f"{url}/healthz", timeout=120).json()["status"] == "ok"
            subprocess.run(shlex.split(reload.replace("$MAINPID", str(process.pid))), check=True)
            wait_for(lambda: "all workers replaced" in log.read_text(), "the workers are replaced")
            assert httpx.get(f"{url}/healthz", timeout=120).json()["status"] == "ok"
            process.send_signal(getattr(signal, service["KillSignal"][0]))
            assert process.wait(float(service["TimeoutStopSec"][0])) == 0
        finally:
            process.kill()
            process.wait(10)


class TestCompose:
    def test_everything_it_refers_to_is_there(self) -> None:
        """Services, volumes, the file that is built."""
        found = compose()
        gateway, postgres = found["services"]["gateway"], found["services"]["postgres"]
        assert set(gateway["depends_on"]) == {"postgres"} and "healthcheck" in postgres
        assert {line.partition(":")[0] for line in postgres["volumes"]} == set(found["volumes"])
        assert (FOLDER / gateway["build"]["context"] / gateway["build"]["dockerfile"]).is_file()
        assert (
            int(gateway["stop_grace_period"].removesuffix("s"))
            > float(gateway["environment"]["KOMPAKT_DRAIN"]) + STOP_MARGIN
        )

    def test_its_settings_are_settings(self) -> None:
        """The gateway takes them as they are."""
        environ = compose()["services"]["gateway"]["environment"]
        assert load(environ=environ).store.startswith("postgresql://kompakt:")


@pytest.mark.parametrize("name", ["Containerfile", "kompakt-gateway.service", "compose.yaml"])
def test_variables_are_those_of_settings(name: str) -> None:
    """A name that changed would be ignored without a word."""
    found = set(VARIABLE.findall((FOLDER / name).read_text())) - {""}
    assert found and {one.lower() for one in found} <= set(GatewayConfig.__struct_fields__)
