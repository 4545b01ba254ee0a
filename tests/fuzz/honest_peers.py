"""`python -m tests.fuzz.honest_peers STEPS RESULTS RELEASE`: the honest side of a fuzzed bus.

A worker and a level-0 handler. Each holds its steps until the file RELEASE exists. Their outputs have a member `by`,
which no mutated message contains.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import zmq
from stepwire import Context, Worker

NAME: Final = "shop"
OUTPUT: Final = {"by": "honest"}
LONG_MS: Final = 24 * 3_600_000
LEVEL0: Final = "old.pay"
HELD: Final[dict[str, Any]] = {
    "name": "held",
    "version": "1",
    "steps": [
        {"name": "reserve", "handler_class": "shop.hold", "timeout_ms": LONG_MS},
        {"name": "charge", "handler_class": "shop.hold", "timeout_ms": LONG_MS, "delivery_mode": "at_most_once"},
        {"name": "pay", "handler_class": LEVEL0, "timeout_ms": LONG_MS},
    ],
}
QUICK: Final[dict[str, Any]] = {
    "name": "quick",
    "version": "1",
    "steps": [{"name": "reserve", "handler_class": "shop.quick"}],
}


@contextlib.contextmanager
def honest_peers(steps: str, results: str, release: Path) -> Iterator["subprocess.Popen[bytes]"]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STEPWIRE_")}
    command = [sys.executable, "-m", __name__, steps, results, str(release)]
    process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        release.touch()  # a worker ends after its steps
        process.terminate()
        process.communicate(timeout=60)


def main(steps: str, results: str, release: str) -> None:
    worker = Worker(steps=steps, results=results, name=NAME, slots=8)

    @worker.handler("shop.hold")
    def hold(context: Context) -> dict[str, str]:
        _wait_for(release)
        return OUTPUT

    @worker.handler("shop.quick")
    def quick(context: Context) -> dict[str, str]:
        return OUTPUT

    threading.Thread(target=_answer_at_level0, args=(steps, results, release), daemon=True).start()
    worker.run()


def _wait_for(release: str) -> None:
    while not os.path.exists(release):
        time.sleep(0.05)


def _answer_at_level0(steps: str, results: str, release: str) -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as sub, context.socket(zmq.PUB) as pub:
        sub.subscribe(b"steps ")
        sub.connect(steps)
        pub.connect(results)
        while True:
            batch = json.loads(sub.recv().partition(b" ")[2])
            _wait_for(release)
            answers = [{"step_id": step["step_id"], "status": "completed", "output": OUTPUT} for step in batch["steps"]]
            document = {"batch_id": batch["batch_id"], "protocol_version": "1.0", "results": answers}
            pub.send(b"results " + json.dumps(document).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
