"""Measures the number of steps per second that `exec` runs with empty programs.

python -m tests.executors.measure_exec [STEPS] [SLOTS]
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from stepwire.client import Client

from tests.cli.a_place import place, stop

PROGRAMS = {"at_least_once": ["true"], "at_most_once": ["true"], "shell": ["sh", "-c", "read -r line; echo 1"]}
AT_A_TIME = 500


def measure(steps: int, slots: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        here = place(Path(directory))
        os.chmod(directory, 0o700)
        settings = {
            "execution": {"default_executor": "exec"},
            "executors": {"exec": {"commands": PROGRAMS, "slots": slots}},
            "log_level": "warning",
        }
        (here.directory / "stepwire.yaml").write_text(json.dumps(settings))
        broker = here.serve("-o", "json")
        facts = json.loads(broker.ready)
        token = (here.directory / facts["token_file"]).read_text().strip()
        try:
            with Client(facts["http"], token=token) as client:
                for name in PROGRAMS:
                    mode = "at_most_once" if name == "at_most_once" else "at_least_once"
                    step = {"name": "s", "handler_class": name, "delivery_mode": mode, "timeout_ms": 600_000}
                    client.apply_workflow({"name": name, "steps": [step]})
                    before_s, cpu_s = time.perf_counter(), _cpu_s(broker.process.pid)
                    last = 0
                    for _ in range(0, steps, AT_A_TIME):
                        last = client.submit_many([{"workflow": name}] * min(AT_A_TIME, steps))[-1]
                    client.wait(last, 600)
                    while client.tasks(workflow=name, state="running", limit=1)["tasks"]:
                        time.sleep(0.01)
                    took_s = time.perf_counter() - before_s
                    done = steps - len(client.tasks(workflow=name, state="failed")["tasks"])
                    broker_ms = (_cpu_s(broker.process.pid) - cpu_s) / steps * 1000
                    rate = f"{steps / took_s:6.0f}/s"
                    print(f"{name:14} {slots} slots  {done} steps  {rate}  {broker_ms:.2f} ms of the broker a step")
        finally:
            stop(broker.process)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    measure(*(numbers + [2_000, 8][len(numbers) :]))
