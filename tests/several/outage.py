"""An outage of the database, second by second: what clients, workers and `why` see.

    python -m tests.several.outage cut --outage-s 60          # one of three brokers is cut off from the server
    python -m tests.several.outage server --outage-s 30       # the server is away

One step of each broker waits for its gate, and a client submits to each broker. The table has a row for each second in
which something changed. Afterwards the gate opens, every task must end, and no step may have been started twice.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.checker import page
from tests.postgres.server import PostgresServer
from tests.system.harness import RecordedClient, eventually, workflow

from .brokers import BOUND_S, Broker, Brokers, Shape

BEFORE_S: Final = 3.0
AFTER_S: Final = 30.0
ANSWER_S: Final = 4.0

HELD: Final = workflow(
    "held",
    {
        "name": "only",
        "handler_config": {"gate": "gate"},
        "delivery_mode": "at_most_once",
        "timeout_ms": 600_000,
    },
)
SHORT: Final = workflow("short", {"name": "only", "handler_config": {"work_ms": 20}})
WAITING: Final = workflow("waiting", {"name": "only", "handler_class": "nobody.offers"})


class Watch:
    """Asks one thing once a second, in a thread of its own, and keeps each answer with its time."""

    def __init__(self, name: str, ask: Callable[[], str]) -> None:
        self.name = name
        self._ask = ask
        self._is_over = threading.Event()
        self.answers: list[tuple[float, str]] = []  # by the time at which it was asked
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            at_s = time.monotonic()
            answer = self._ask()
            took_s = time.monotonic() - at_s
            self.answers.append((at_s, f"{answer} after {took_s:.0f} s" if took_s >= 1 else answer))
            self._is_over.wait(max(0.0, 1 - took_s))

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def at(self, at_s: float) -> str:
        """The last answer that was asked for before this time."""
        before = [answer for asked_s, answer in self.answers if asked_s <= at_s]
        return before[-1] if before else ""


def submitting(brokers: Brokers, broker: Broker) -> Callable[[], str]:
    door = RecordedClient(broker.site, brokers.ledger("client"))
    number = 0

    def ask() -> str:
        nonlocal number
        number += 1
        answer = door.submit("short", f"{broker.id}-{number}", timeout_s=ANSWER_S)
        return str(answer.status or "no answer") + (f" {answer.code}" if answer.status not in (200, 201) else "")

    return ask


def readiness(broker: Broker) -> Callable[[], str]:
    def ask() -> str:
        answer = broker.ask("GET", "/readyz", timeout_s=ANSWER_S)
        if answer.status == 200:
            return "ready"
        reasons = answer.body.get("reasons") if isinstance(answer.body, dict) else None
        return ", ".join(map(_reason, reasons)) if reasons else f"{answer.status} {answer.code or ''}"

    return ask


def _reason(reason: Any) -> str:
    return str(reason.get("code", reason)) if isinstance(reason, dict) else str(reason)


def why(broker: Broker, task_id: int) -> Callable[[], str]:
    def ask() -> str:
        answer = broker.ask("GET", f"/v1/tasks/{task_id}/why", timeout_s=ANSWER_S)
        if answer.status != 200:
            return f"{answer.status or 'no answer'} {answer.code or ''}".strip()
        steps = answer.body.get("steps") or [answer.body]
        return ", ".join(str(step.get("code")) for step in steps)

    return ask


def sessions(brokers: Brokers) -> Callable[[], str]:
    """The brokers from which the worker has heard in the last second, by its own record."""
    (path,) = brokers.first.ledgers.glob("wire-all-*.jsonl")
    seen = path.stat().st_size

    def ask() -> str:
        nonlocal seen
        with path.open("rb") as file:
            file.seek(seen)
            text = file.read()
        seen += text.rfind(b"\n") + 1
        lines = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
        return " ".join(sorted({line["broker"] for line in lines if line["event"] == "heard"})) or "none"

    return ask


def owners(brokers: Brokers) -> Callable[[], str]:
    def ask() -> str:
        try:
            owned = brokers.owners()
        except Exception as error:
            return type(error).__name__
        return " ".join(f"{broker.id}:{owned.count(broker.id)}" for broker in brokers)

    return ask


def table(watches: list[Watch], began_s: float, until_s: float) -> list[list[str]]:
    """A row for each second in which an answer differs from that of the second before."""
    rows: list[list[str]] = []
    for second in range(-int(BEFORE_S) + 1, int(until_s - began_s) + 1):
        row = [watch.at(began_s + second) for watch in watches]
        if not rows or rows[-1][1:] != row:
            rows.append([str(second), *row])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["cut", "server"])
    parser.add_argument("--outage-s", type=float, default=60.0)
    parser.add_argument("--after-s", type=float, default=AFTER_S)
    parser.add_argument("--lease-ms", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"settings: {json.dumps({**vars(options), 'json': None})}", flush=True)
    shape = Shape(lease_ms=options.lease_ms, worker_lease_ms=10_000, is_proxied=True)
    with PostgresServer() as server, Brokers(server, shape) as brokers:
        brokers.start()
        brokers.start_worker("all", "--slots", "20")
        for broker in brokers:
            eventually(lambda broker=broker: broker.site.workers() or None, "a session with each broker", BOUND_S)  # type: ignore[misc]
        brokers.await_shares()
        for definition in (HELD, SHORT, WAITING):
            brokers.first.apply(definition)
        ledger = brokers.ledger("client")
        waiting: list[int] = []
        for broker in brokers:
            door = RecordedClient(broker.site, ledger)
            door.submit_many_until_stored("held", [f"held-{broker.id}"], BOUND_S)
            waiting += door.submit_many_until_stored("waiting", [f"waiting-{broker.id}"], BOUND_S)
        eventually(lambda: len(brokers.first.runs("started")) >= 3 or None, "the runs", BOUND_S)
        watches = [
            Watch("submit to b1", submitting(brokers, brokers[0])),
            Watch("submit to b2", submitting(brokers, brokers[1])),
            Watch("/readyz of b1", readiness(brokers[0])),
            Watch("/readyz of b2", readiness(brokers[1])),
            Watch("why, a task of b1, asked of b1", why(brokers[0], waiting[0])),
            Watch("why, a task of b1, asked of b2", why(brokers[1], waiting[0])),
            Watch("the worker hears", sessions(brokers)),
            Watch("lanes", owners(brokers)),
        ]
        time.sleep(BEFORE_S)
        began_s = time.monotonic()
        proxy = brokers[0].proxy
        assert proxy is not None
        if options.kind == "cut":
            brokers[0].site.fault("cut", brokers[0].program)
            proxy.silence("to_server", "to_client")
            time.sleep(options.outage_s)
            proxy.heal()
            brokers[0].site.fault("healed", brokers[0].program)
        else:
            server.stop("immediate")
            time.sleep(options.outage_s)
            server.start()
        time.sleep(options.after_s)
        until_s = time.monotonic()
        for watch in watches:
            watch.stop()
        rows = table(watches, began_s, until_s)
        brokers.first.open_gate("gate")
        for task_id in waiting:
            brokers.first.stepwire("task", "cancel", str(task_id))
        eventually(lambda: brokers.open_tasks() == 0 or None, "every task to end", BOUND_S)
        verdict = brokers.judge()
    heads = ["s", *(watch.name for watch in watches)]
    for row in (heads, ["---"] * len(heads), *rows):
        print(f"| {' | '.join(row)} |")
    found = {
        "settings": {**vars(options), "json": None},
        "heads": heads,
        "rows": rows,
        "figures": verdict.figures,
        "violations": [str(each) for each in verdict.violations],
    }
    print(str(verdict))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if verdict.violations:
        print(page(verdict))
    return int(bool(verdict.violations))


if __name__ == "__main__":
    sys.exit(main())
