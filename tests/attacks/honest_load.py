"""The honest load during an attack: tasks of four steps at a fixed rate, one client and one worker as processes.

`python -m tests.attacks.honest_load URL RATE` is the client, with its token on stdin. It submits whatever is due, also
when earlier submissions have taken long, until stdin ends, and prints its counts.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from stepwire import Client
from stepwire.errors import ClientError
from stepwire_broker.api.token import Grant, add_token
from stepwire_broker.bench.load import CONTEXT, NAME, STEPS, chain
from stepwire_broker.core.answers.scopes import Scope

from .listeners import HONEST, of_honest_load
from .target import Target

RATE: Final = 2_000  # steps/s
SHARE_MIN: Final = 0.8  # of the offered steps, completed during the attack
CALM_S: Final = 3.0  # the load runs before the attack begins
TICK_S: Final = 0.05
BATCH_MAX: Final = 500  # tasks in one submission
START_S: Final = 60.0


class HonestLoad:
    """A load that runs. `begin` and `end` enclose the attack."""

    def __init__(self, target: Target, rate: int, client: "subprocess.Popen[str]") -> None:
        self._target = target
        self._rate = rate
        self._client = client
        self._since = (0.0, 0)
        self._calm = 0.0

    def wait_for_first(self) -> None:
        ends_s = time.monotonic() + START_S
        while not self._completed():
            assert time.monotonic() < ends_s, (self._target.directory / "honest.log").read_text()
            time.sleep(0.05)

    def begin(self) -> None:
        """Measure the load without an attack for CALM_S, then during the attack."""
        self._since = time.monotonic(), self._completed()
        time.sleep(CALM_S)
        self._calm, _, _ = self._share()

    def end(self) -> dict[str, Any]:
        """The share of the offered steps that were completed since `begin`."""
        share, offered, completed = self._share()
        counts, _ = self._client.communicate(timeout=START_S)
        return {
            "steps_per_s": self._rate,
            "offered": offered,
            "completed": completed,
            "share": share,
            "share_before": self._calm,
            "client": json.loads(counts),
        }

    def _share(self) -> tuple[float, int, int]:
        since_s, before = self._since
        self._since = now_s, after = time.monotonic(), self._completed()
        offered = int((now_s - since_s) * self._rate)
        return round((after - before) / max(1, offered), 3), offered, after - before

    def _completed(self) -> int:
        ends_s = time.monotonic() + START_S
        while True:
            try:
                lines = self._target.call("GET", "/metrics", self._target.admin)[1].decode().splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("stepwire_completed_steps_total"))
            except (OSError, StopIteration):
                if time.monotonic() > ends_s:
                    raise
                time.sleep(0.1)


@contextmanager
def offered(target: Target, rate: int) -> Iterator[HonestLoad]:
    """Start the worker and the client of a load of `rate` steps/s."""
    assert target.call("POST", "/v1/workflows", target.admin, chain())[0] == 201
    listener = of_honest_load(target)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STEPWIRE_")}
    if listener["curve"]:
        environ["STEPWIRE_CURVE_FILE"] = str(target.directory / HONEST)
    work = [sys.executable, "-m", "stepwire_broker.bench.worker", listener["steps"], listener["results"], "default"]
    submit = [sys.executable, "-m", __name__, target.ready["http"], str(rate)]
    with open(target.directory / "honest.log", "w") as log:
        worker = subprocess.Popen(work, env=environ, stderr=log)
        client = subprocess.Popen(
            submit, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        token = add_token(target.directory / ".stepwire/tokens", Grant("honest", frozenset({Scope.SUBMIT})))
        assert client.stdin is not None
        client.stdin.write(f"{token}\n")
        client.stdin.flush()
        load = HonestLoad(target, rate, client)
        load.wait_for_first()
        yield load
        assert worker.poll() is None, (target.directory / "honest.log").read_text()
    finally:
        for process in (client, worker):
            process.terminate()
        for process in (client, worker):
            process.communicate(timeout=START_S)


def submit(url: str, rate: float, token: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    tasks_per_s = rate / len(STEPS)
    with Client(url, token=token) as client:
        began_s, submitted = time.monotonic(), 0
        while not select.select([sys.stdin], [], [], TICK_S)[0]:
            due = min(BATCH_MAX, int((time.monotonic() - began_s) * tasks_per_s) - submitted)
            if due <= 0:
                continue
            submitted += due
            call_s = time.monotonic()
            try:
                client.submit_many([{"workflow": NAME, "context": CONTEXT}] * due)
                counts["tasks"] += due
            except ClientError as error:
                counts[f"refused: {type(error).__name__}"] += due
            counts["call_max_ms"] = max(counts["call_max_ms"], int((time.monotonic() - call_s) * 1000))
    return counts


def main(url: str, rate: str) -> None:
    print(json.dumps(submit(url, float(rate), sys.stdin.readline().strip())))


if __name__ == "__main__":
    main(*sys.argv[1:])
