"""The throughput of the product with its default settings, next to open tasks that no worker can run.

One broker runs for each number of idle tasks. Their rounds alternate, so that a slow hour affects all of them.
"""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stepwire_broker.core.definitions.settings import LimitSettings

from . import product
from .load import DEFAULT, STEPS, BenchFailed, Progress, Workload
from .routes import cpu_us_per_step


def run(load: Workload, counts: list[int], step: Callable[[str], Progress]) -> list[dict[str, Any]]:
    """Measure `load.rounds` rounds for each number of idle tasks. Returns one document for each number."""
    measured: list[dict[str, Any]] = []
    with ExitStack() as stack:
        directories = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stepwire-bench-"))) for _ in counts]
        with ExitStack() as processes:
            products = []
            for count, directory in zip(counts, directories, strict=True):
                limits = limits_for(count, load)
                running = processes.enter_context(product.running(directory, load, DEFAULT, {"limits": limits}))
                seconds = running.submit_idle(count, step(f"submitting {count} idle tasks"))
                products.append(running)
                measured.append({"idle_tasks": count, "limits": limits, "submit_seconds": seconds, "rounds": []})
            for number in range(load.rounds):
                for running, document in list(zip(products, measured, strict=True))[:: 1 if number % 2 else -1]:
                    round_of = f"next to {document['idle_tasks']} idle tasks, {number + 1} of {load.rounds}"
                    throughput, cpu = running.run(load, step(round_of))
                    document["rounds"].append(
                        {
                            "steps_per_s": throughput.steps_per_s,
                            "cpu_us_per_step": cpu_us_per_step(cpu, throughput.steps),
                        }
                    )
            for running, document in zip(products, measured, strict=True):
                document["broker_mb"] = running.memory_mb()
        for directory, document in zip(directories, measured, strict=True):
            checked = product.check(directory, step(f"replaying the history, {document['idle_tasks']} idle tasks"))
            if checked < load.rounds * load.tasks:
                raise BenchFailed(f"only {checked} of {load.rounds * load.tasks} measured tasks are in the database")
            document["tasks_replayed"] = checked
    return measured


def limits_for(count: int, load: Workload) -> dict[str, int]:
    """The limits of a broker with this number of idle tasks: the defaults, with room for all steps."""
    steps = count + len(STEPS) * (load.window + load.submit_tasks)
    return {"max_open_steps": max(LimitSettings().max_open_steps, steps)}
