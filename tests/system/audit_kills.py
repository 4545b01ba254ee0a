"""`python -m tests.system.audit_kills --times 100`: the broker is killed between an operator's effect and its answer.

Each cycle lets clients send commands of operators at the same time, and kills the broker with SIGKILL just before or
just after a COMMIT. Then the facts of operators in the history are compared with the rows of the audit, and every
answer that a client received with the row that it promises.
"""

import argparse
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from stepwire_broker.store.sqlite.stored_state import SqliteState
from stepwire_broker.store.stored_audit import verify

from .harness import END_BOUND_S, Site, workflow

COMMITS_MAX: Final = 12  # a broker is killed after at most this many groups of commands
CLIENTS: Final = 4
START_S_MAX: Final = 120.0  # on a busy machine
TASKS: Final = 4
ACTIONS: Final = {"cancel_asked": "cancel_task", "paused": "pause_task", "resumed": "resume_task"}
VERBS: Final = ("pause", "resume", "cancel", "retry")

Effects = Counter[tuple[str, str]]  # action and target


class KillFigures(NamedTuple):
    kills: int
    effects: int
    rows: int
    answered: int  # commands that were answered before a kill
    faults: list[str]


def run(site: Site, times: int, seed: int, show: Callable[[str], object] = lambda text: None) -> KillFigures:
    chance = random.Random(seed)
    answered: Effects = Counter()
    faults: list[str] = []
    effects = rows = 0
    for cycle in range(times):
        broker = site.start_broker(with_faults=True, bound_s=START_S_MAX)
        if cycle == 0:
            site.apply(workflow("order", {"name": "charge"}))
        tasks = [site.ask("POST", "/v1/tasks", {"workflow": "order"}).body["task_id"] for _ in range(TASKS)]
        fault = site.faults / chance.choice(["kill_before", "kill_after"])
        fault.write_text(str(chance.randrange(COMMITS_MAX)))
        with ThreadPoolExecutor(CLIENTS) as clients:
            seeds = [chance.randrange(1 << 30) for _ in range(CLIENTS)]
            for done in clients.map(partial(_send, site, tasks), seeds):
                answered += done
        broker.wait(END_BOUND_S)
        fault.unlink(missing_ok=True)
        of_history, of_audit, found = _read(site.database)
        effects, rows = of_history.total(), of_audit.total()
        faults += [f"cycle {cycle}: {text}" for text in found]
        if of_history != of_audit:
            faults.append(f"cycle {cycle}: effects and rows differ: {(of_history - of_audit, of_audit - of_history)}")
        if answered - of_audit:
            faults.append(f"cycle {cycle}: answered without a row: {answered - of_audit}")
        show(f"{cycle + 1} of {times} kills: {effects} effects, {rows} rows, {len(faults)} faults")
    return KillFigures(times, effects, rows, answered.total(), faults)


def _send(site: Site, tasks: list[int], seed: int) -> Effects:
    """Send commands until the broker is dead. Returns those that changed something and were answered."""
    chance = random.Random(seed)
    answered: Effects = Counter()
    while True:
        task_id, verb = chance.choice(tasks), chance.choice(VERBS)
        answer = site.ask("POST", f"/v1/tasks/{task_id}/{verb}", {"reason": "R"} if verb == "retry" else None)
        if answer.status == 0:
            return answered
        if answer.status == 200 and verb == "retry":  # a retry that is not refused always has an effect
            answered["retry_task", f"task {task_id}"] += 1


def _read(database: Path) -> tuple[Effects, Effects, list[str]]:
    """The effects by the history, the rows of the audit with the outcome `done`, and faults of the chain."""
    effects: Effects = Counter()
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        for task_id, text in connection.execute("SELECT task_id, facts FROM history"):
            for fact in json.loads(text):
                action = "retry_task" if fact[0] == "operated" else ACTIONS.get(fact[0])
                if action is not None:
                    effects[action, f"task {task_id}"] += 1
        of_tasks = "SELECT action, target FROM audit WHERE outcome = 'done' AND target LIKE 'task %'"
        rows: Effects = Counter(connection.execute(of_tasks).fetchall())
        return effects, rows, list(verify(SqliteState(connection)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.audit_kills", description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with Site() as site:
        figures = run(site, options.times, options.seed, print)
    print(json.dumps(figures._asdict()))
    return 1 if figures.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
