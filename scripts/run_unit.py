"""Run deploy/kompakt-gateway.service under a real systemd: python scripts/run_unit.py (as root, about a minute).

Starts systemd as the first process of new namespaces (processes, mounts, network, cgroups), on a copy-on-write view of
this machine's files, so nothing outside changes. There it enables the unit as it is, with all its sandboxing, and sends
requests to it from eight clients, half of which keep their connections, while it is reloaded three times, a worker is
killed, and the service is killed and stopped. Prints what happened as JSON; the exit code is 1 if a request was lost
that no kill explains, or if a step did not work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
MASKED = (
    "systemd-udevd.service",
    "systemd-udev-trigger.service",
    "systemd-sysctl.service",
    "systemd-modules-load.service",
    "systemd-random-seed.service",
    "systemd-timesyncd.service",
    "systemd-networkd.service",
    "systemd-resolved.service",
    "systemd-logind.service",
    "networking.service",
    "getty.target",
    "dev-hugepages.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
)
"""Units of the machine that have no place in the namespaces."""

DRIVER = """
import http.client, json, os, pathlib, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

UNIT = "kompakt-gateway.service"
found = {"steps": [], "requests": 0, "lost": []}
phase, done, lock = "start", threading.Event(), threading.Lock()


class Provider(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": "Yes."}
        body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128


def shell(*command, check=True):
    ran = subprocess.run(command, capture_output=True, text=True)
    if check and ran.returncode:
        raise RuntimeError(f"{command}: {ran.stdout} {ran.stderr}")
    return ran.stdout.strip()


def wait(what, is_true):
    end = time.monotonic() + 90
    while not is_true():
        if time.monotonic() > end:
            raise RuntimeError(f"did not happen: {what}")
        time.sleep(0.05)
    found["steps"].append(what)


def is_healthy():
    try:
        connection = http.client.HTTPConnection("127.0.0.1", 8484, timeout=5)
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False


def main_pid():
    return int(shell("systemctl", "show", "-p", "MainPID", "--value", UNIT))


def workers():
    pid = main_pid()
    return set(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) if pid else set()


def client(number):
    messages = [{"role": "user", "content": f"Client {number}: is the queue empty?"}]
    connection = None
    while not done.is_set():
        body = json.dumps({"model": "m", "messages": messages}).encode()
        connection = connection or http.client.HTTPConnection("127.0.0.1", 8484, timeout=30)
        now = phase
        try:
            connection.request("POST", "/v1/chat/completions", body, {"authorization": f"Bearer k{number}"})
            answer = connection.getresponse()
            answer.read()
            status, closes = answer.status, answer.will_close
        except (OSError, http.client.HTTPException) as error:
            status, closes = f"{type(error).__name__}: {error}", True
        with lock:
            found["requests"] += 1
            if status != 200:
                found["lost"].append([now, phase, str(status)])
        if closes or number % 2:
            connection.close()
            connection = None
        messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And now?"}]
        messages = messages[-21:] if len(messages) > 40 else messages
        time.sleep(0.05)


def enter(name):
    global phase
    phase = name


def drive():
    server = Server(("127.0.0.1", 9999), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    wait("the service is active and ready", is_healthy)
    wait("two workers run", lambda: len(workers()) == 2)
    clients = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(8)]
    for one in clients:
        one.start()
    time.sleep(3)
    for number in (1, 2, 3):
        enter("reload")
        before = workers()
        shell("systemctl", "reload", UNIT)
        wait(f"reload {number} replaced both workers", lambda: len(workers() - before) == 2)
        time.sleep(2)
    wait("the retired workers ended", lambda: len(workers()) == 2)
    enter("worker killed")
    victim = sorted(workers())[0]
    os.kill(int(victim), 9)
    wait("a killed worker was replaced", lambda: len(workers()) == 2 and victim not in workers() and is_healthy())
    time.sleep(3)
    enter("between")
    time.sleep(1)
    enter("service killed")
    pid = main_pid()
    os.kill(pid, 9)
    wait("systemd restarted the killed service", lambda: main_pid() not in (0, pid) and is_healthy())
    enter("end")
    done.set()
    for one in clients:
        one.join()
    shell("systemctl", "stop", UNIT)
    wait("it stopped", lambda: shell("systemctl", "is-active", UNIT, check=False) == "inactive")
    found["result"] = shell("systemctl", "show", "-p", "Result", "--value", UNIT)
    shell("systemctl", "start", UNIT)
    wait("it started again", is_healthy)
    found["sessions"] = sorted(path.name for path in pathlib.Path("/var/lib/private/kompakt").iterdir())
    user = shell("ps", "-o", "user=", "-p", str(main_pid()))
    found["user"] = user
    found["exposure"] = shell("systemd-analyze", "security", UNIT, "--no-pager", check=False).splitlines()[-1]


try:
    drive()
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}"
    found["journal"] = shell("journalctl", "-n", "20", "--no-pager", "-u", UNIT, check=False).splitlines()
    found["units"] = shell("systemctl", "--failed", "--no-pager", "--no-legend", check=False).splitlines()
pathlib.Path("/usr/local/kompakt/out/result.json").write_text(json.dumps(found))
"""

START = r"""
set -e
base=$1; source=$2; python=$3; site=$4
mkdir -p $base/upper $base/work $base/root
mount -t overlay overlay -o lowerdir=/,upperdir=$base/upper,workdir=$base/work $base/root
root=$base/root
mount -t proc proc $root/proc
mount -t sysfs -o ro sysfs $root/sys
mount -t cgroup2 none $root/sys/fs/cgroup
mount --rbind /dev $root/dev
for folder in run tmp var/lib; do mount -t tmpfs tmpfs $root/$folder; done
mount -o bind,ro $root/proc/sys $root/proc/sys
mkdir -p $root/usr/local/kompakt/{out,python,site,source} $root/etc/kompakt $root/var/log/journal
mount --bind $base/out $root/usr/local/kompakt/out
mount --bind $python $root/usr/local/kompakt/python
mount --bind $site $root/usr/local/kompakt/site
mount --bind $source $root/usr/local/kompakt/source
cp $base/kompakt $root/usr/local/bin/kompakt
cp $base/driver.py $root/usr/local/kompakt/driver.py
cp $base/environment $root/etc/kompakt/environment
cp $source/deploy/kompakt-gateway.service $root/etc/systemd/system/
cp $base/driver.service $base/gateway-test.target $root/etc/systemd/system/
for unit in $(cat $base/masked); do ln -sf /dev/null $root/etc/systemd/system/$unit; done
mkdir -p $root/etc/systemd/system/gateway-test.target.wants
ln -s ../kompakt-gateway.service $root/etc/systemd/system/gateway-test.target.wants/
ip link set lo up
exec chroot $root env -i container=kompakt PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=gateway-test.target --show-status=false --log-target=null
"""


def main() -> int:
    if os.geteuid() != 0:
        print("needs root, to create namespaces", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="kompakt-unit-") as name:
        base = Path(name)
        (base / "out").mkdir()
        python = Path(sys.base_prefix)
        site = next(Path(one) for one in sys.path if one.endswith("site-packages"))
        (base / "kompakt").write_text(
            "#!/bin/sh\nexport LD_LIBRARY_PATH=/usr/local/kompakt/python/lib PYTHONDONTWRITEBYTECODE=1\n"
            "export PYTHONPATH=/usr/local/kompakt/source/src:/usr/local/kompakt/site\n"
            'exec /usr/local/kompakt/python/bin/python3 -m kompakt "$@"\n'
        )
        (base / "kompakt").chmod(0o755)
        (base / "driver.py").write_text(DRIVER)
        (base / "environment").write_text("KOMPAKT_UPSTREAMS=openai=http://127.0.0.1:9999\nKOMPAKT_DRAIN=5\n")
        (base / "driver.service").write_text(
            "[Unit]\nAfter=kompakt-gateway.service\nSuccessAction=exit-force\nFailureAction=exit-force\n"
            "[Service]\nType=oneshot\nExecStart=/usr/local/kompakt/python/bin/python3 /usr/local/kompakt/driver.py\n"
        )
        (base / "gateway-test.target").write_text(
            "[Unit]\nRequires=basic.target\nAfter=basic.target\nWants=driver.service\n"
        )
        (base / "masked").write_text("\n".join(MASKED))
        (base / "start").write_text(START)
        command = ["unshare", "--mount", "--pid", "--fork", "--net", "--cgroup", "--uts", "--ipc", "--kill-child"]
        command += ["bash", str(base / "start"), str(base), str(ROOT), str(python), str(site)]
        subprocess.run(command, check=False, timeout=600)
        result = base / "out" / "result.json"
        if not result.exists():
            print("systemd ended without a result", file=sys.stderr)
            return 1
        found = json.loads(result.read_text())
    kills = ("worker killed", "service killed")
    unexplained = [one for one in found["lost"] if not {*kills} & {*one[:2]}]
    found["lost"] = {
        **{kill: sum(kill in one[:2] for one in found["lost"]) for kill in kills},
        "otherwise": unexplained,
    }
    print(json.dumps(found, indent=2))
    return 1 if unexplained or "error" in found else 0


if __name__ == "__main__":
    raise SystemExit(main())
