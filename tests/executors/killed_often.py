"""A broker is killed repeatedly while its programs run: does a step ever run twice at a time?

    python -m tests.executors.killed_often [SEED] [ROUNDS]

Every program first checks the environments of its step's earlier programs for one that lives, and records its begin. In
the end every task is over, no two runs overlapped, and every at_most_once step has begun at most once.
"""

import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from stepwire.client import Client

from tests.cli.a_place import Place, Serving, place, stop

PROGRAM = """#!/bin/sh
for pid in $(cat "began.$STEPWIRE_STEP_ID" 2> /dev/null); do
    tr '\\0' '\\n' < "/proc/$pid/environ" 2> /dev/null | grep -qx "STEPWIRE_STEP_ID=$STEPWIRE_STEP_ID" &&
        echo "step $STEPWIRE_STEP_ID: $pid and $$" >> overlaps
done
echo $$ >> "began.$STEPWIRE_STEP_ID"
{more}
sleep "{whole_s}.$(($$ % 10))"
echo 1
"""
KINDS = {"plain": ":", "stubborn": "trap '' TERM", "with_child": "sleep 5 &"}
MODES = ("at_least_once", "at_most_once")
SLOTS = 6
EACH = 2  # tasks of each kind and mode in a round


def main(seed: int, rounds: int) -> None:
    luck = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        here = place(Path(directory))
        prepare(here, luck)
        tasks: list[int] = []
        ended = 0
        for _ in range(rounds):
            broker, client = begin(here)
            tasks += submit(client)
            time.sleep(luck.random() * 1.5)
            broker.process.kill()
            ended += broker.end().err.count("earlier_run_ended")
        broker, client = begin(here)
        try:
            outcomes = Counter(outcome(here, client, task) for task in tasks)
        finally:
            stop(broker.process)
        overlaps = here.directory / "overlaps"
        print(f"seed {seed}: {rounds} kills, {len(tasks)} tasks, {ended} processes ended at a start")
        for (mode, state, began), many in sorted(outcomes.items()):
            print(f"  {many:5} {mode} {state}, begun {began} times")
        assert not overlaps.exists(), overlaps.read_text()


def prepare(here: Place, luck: random.Random) -> None:
    here.directory.chmod(0o700)
    for name, more in KINDS.items():
        (here.directory / name).write_text(PROGRAM.format(more=more, whole_s=luck.choice((0, 1))))
        (here.directory / name).chmod(0o700)
    settings = {
        "execution": {"default_executor": "exec"},
        "executors": {"exec": {"slots": SLOTS, "commands": {name: [f"./{name}"] for name in KINDS}}},
        "bus": {"lost_sessions_max": 10_000},
    }
    (here.directory / "stepwire.yaml").write_text(json.dumps(settings))


def begin(here: Place) -> tuple[Serving, Client]:
    broker = here.serve("-o", "json")
    facts = json.loads(broker.ready)
    return broker, Client(facts["http"], token_file=here.directory / facts["token_file"])


def submit(client: Client) -> list[int]:
    names = []
    for kind in KINDS:
        for mode in MODES:
            step = {"name": "s", "handler_class": kind, "delivery_mode": mode}
            client.apply_workflow({"name": f"{kind}.{mode}", "steps": [step]})
            names += [f"{kind}.{mode}"] * EACH
    return client.submit_many([{"workflow": name} for name in names])


def outcome(here: Place, client: Client, task: int) -> tuple[str, str, int]:
    while (view := client.task(task))["state"] == "running" and view["attention"] is None:
        time.sleep(0.05)
    (step,) = view["steps"]
    mode = view["workflow"].rpartition(".")[2]
    file = here.directory / f"began.{step['step_id']}"
    began = len(file.read_text().split()) if file.exists() else 0
    assert step["state"] == "completed" or (mode, step["state"]) == ("at_most_once", "held"), view
    assert began <= 1 or mode == "at_least_once", view
    return mode, step["state"], began


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    main(*(numbers + [1, 20][len(numbers) :]))
