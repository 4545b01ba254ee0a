"""A program of the executor `exec`: it records its run in a ledger, and returns the token of its run.

    python -I -S program.py LEDGERS < STEP

Its process, for the judge, is the broker that started it: the broker's death is the death of its worker.
"""

import json
import os
import sys
import time


def main() -> None:
    pid = os.getppid()
    step = json.load(sys.stdin)
    if pid == 1 or os.getppid() != pid:
        sys.exit(75)  # the broker died before the program had begun
    path = os.path.join(sys.argv[1], f"worker-program-{os.getpid()}-{step['step_id']}.jsonl")
    ledger = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(event: str, **facts: object) -> None:
        line = {
            "event": event,
            "at": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            "wall": time.time_ns(),
            "step_id": step["step_id"],
            "task_id": step["task_id"],
            "step": step["step_name"],
            "delivery": step["delivery"],
            "attempt": step["metadata"]["attempt"],
            "pid": pid,
            **facts,
        }
        os.write(ledger, json.dumps(line).encode() + b"\n")

    key = step["metadata"]["idempotency_key"]
    seen = {name: output.get("token") for name, output in step["previous_results"].items()}
    write("started", mode=step["delivery_mode"], key=key, seen=seen)
    time.sleep(step["handler_config"].get("work_ms", 0) / 1000)
    write("effect", key=key)
    write("finished")
    print(json.dumps({"token": f"{step['step_id']}/{step['delivery']}/{pid}"}))


if __name__ == "__main__":
    main()
