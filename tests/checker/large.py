"""A benchmark of the judge: an invented large run, written directly into a database and ledgers.

python -m tests.checker.large DIRECTORY [--tasks 32000]      31 events a task: a chain of three
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec
from sqlalchemy import create_engine
from stepwire_broker.store.tables import brokers, history, keys, lanes, metadata, steps, tasks, workflows

from .judge import judge, page

STEPS: Final = ("a", "b", "c")
WALL_MS: Final = 1_700_000_000_000
SHIFT_NS: Final = 1_600_000_000_000_000_000  # the difference between the wall clock and `at`
WORKER: Final = "one:0000000000000001"
PID: Final = 4711
PAGE_TASKS: Final = 2_000

_encode: Final = msgspec.json.Encoder().encode


def write(directory: Path, count: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    engine = create_engine(f"sqlite:///{directory}/state.db")
    metadata.create_all(engine)
    document = {
        "name": "chain",
        "steps": [
            {"name": name, "handler_class": "system.work", **({"depends_on": [STEPS[i - 1]]} if i else {})}
            for i, name in enumerate(STEPS)
        ],
    }
    ledgers = directory / "ledgers"
    ledgers.mkdir(exist_ok=True)
    files = {name: (ledgers / f"{name}-1.jsonl").open("wb") for name in ("client", "worker", "wire")}
    with engine.begin() as connection:
        head = {"id": 1, "namespace": "default", "name": "chain", "version": "1", "digest": "", "created_ms": WALL_MS}
        connection.execute(workflows.insert(), {**head, "document": _encode(document).decode(), "active": 1})
        connection.execute(brokers.insert(), {"id": "b1", "epoch": 1, "lease_until_ms": 0, "lease_ms": 10_000})
        connection.execute(lanes.insert(), {"id": 1, "owner": "b1", "owner_epoch": 1, "epoch": 1, "seq": count * 8})
        for first in range(0, count, PAGE_TASKS):
            rows: dict[Any, list[dict[str, Any]]] = {tasks: [], steps: [], keys: [], history: []}
            for number in range(first, min(first + PAGE_TASKS, count)):
                for table, row in _rows(number):
                    rows[table].append(row)
                for name, line in _lines(number):
                    files[name].write(_encode(line) + b"\n")
            for table, page_rows in rows.items():
                connection.execute(table.insert(), page_rows)
    for file in files.values():
        file.close()


def _output(step_id: int) -> str:
    return f'{{"token":"{step_id}/1/{PID}"}}'


def _rows(number: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    task_id = 1 + number * 4
    uid = f"{number:032x}"
    at = WALL_MS + number
    task = {"id": task_id, "uid": uid, "workflow_id": 1, "lane": 1, "namespace": "default", "key": f"k{number}"}
    task |= {"state": "completed", "cancelling": 0, "priority": 0, "context": "{}", "context_bytes": 2}
    yield tasks, {**task, "created_ms": at, "finished_ms": at + 30, "rank_ms": at, "stored": 0}
    yield keys, {"namespace": "default", "key": f"k{number}", "digest": b"", "task_id": task_id}
    groups: list[list[list[Any]]] = [[["submitted", at, 1, uid, "running", task_id + 1], ["readied", at, 0]]]
    for i, name in enumerate(STEPS):
        then = at + i * 10
        output = _output(task_id + 1 + i)
        step = {"id": task_id + 1 + i, "task_id": task_id, "position": i, "name": name, "handler_class": "system.work"}
        step |= {"state": "completed", "delivery": 1, "worker": WORKER, "ready_ms": then, "dispatched_ms": then + 1}
        yield steps, {**step, "finished_ms": then + 10, "output": output, "output_bytes": len(output)}
        groups.append([["dispatched", then + 1, i, 1, WORKER, f"batch_{number}_{i}"]])
        groups.append([["completed", then + 10, i, 1, len(output), crc32(output.encode())]])
        groups[-1].append(["readied", then + 10, i + 1] if i < 2 else ["ended", then + 10, "completed"])
    for seq, facts in enumerate(groups):
        row = {"lane_id": 1, "seq": number * 8 + seq + 1, "position": 0, "task_id": task_id, "at_ms": facts[0][1]}
        yield history, {**row, "facts": _encode(facts).decode()}


def _lines(number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    task_id = 1 + number * 4
    key = f"k{number}"

    def line(event: str, ms: int, **facts: Any) -> dict[str, Any]:
        at = (WALL_MS + number + ms) * 1_000_000 - SHIFT_NS
        return {"event": event, "at": at, "wall": at + SHIFT_NS, **facts}

    yield "client", line("asked", -1, key=key, workflow="chain")
    yield "client", line("acknowledged", 1, key=key, workflow="chain", task_id=task_id, created=True)
    for i, name in enumerate(STEPS):
        step_id, then = task_id + 1 + i, i * 10
        before = STEPS[i - 1 : i] if i else ()
        output = _output(step_id).encode()
        inputs = {each: crc32(_output(step_id - 1).encode()) for each in before}
        who = {"pid": PID, "worker": WORKER}
        items = [[step_id, 1, 0, inputs]]
        yield "wire", line("received", then + 2, **who, batch_id=f"batch_{number}_{i}", items=items)
        run = {"step_id": step_id, "task_id": task_id, "step": name, "delivery": 1, "attempt": 0, "pid": PID}
        own = f"{number:032x}/{name}"
        seen = dict.fromkeys(before, f"{step_id - 1}/1/{PID}")
        yield "worker", line("started", then + 3, **run, mode="at_least_once", key=own, seen=seen)
        yield "worker", line("effect", then + 4, **run, key=own)
        yield "worker", line("finished", then + 5, **run)
        result = [step_id, 1, "completed", None, len(output), crc32(output)]
        yield "wire", line("results_sent", then + 6, **who, rid=number * 3 + i + 1, results=[result])
        yield "wire", line("results_acked", then + 11, **who, rids=[number * 3 + i + 1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tasks", type=int, default=32_000)
    options = parser.parse_args()
    if not (options.directory / "state.db").exists():
        write(options.directory, options.tasks)
    began = time.monotonic()
    verdict = judge(options.directory / "state.db", options.directory / "ledgers")
    took_s = time.monotonic() - began
    print(page(verdict))
    print(f"{verdict.figures['events']} events in {took_s:.1f} s, {verdict.figures['events'] / took_s:,.0f} a second")


if __name__ == "__main__":
    main()
