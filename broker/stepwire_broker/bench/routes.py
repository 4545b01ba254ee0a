"""The cost of routing: the product with four executors and twelve rules, compared with the product without them.

The steps match only the last rule, so all twelve rules are tried. The canary of this rule receives half of the tasks.
Both variants use two workers, one of them with the canary's label, so both variants have the same capacity.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from . import product
from .aside import HANDLER as ASIDE
from .load import NAME, BenchFailed, Progress, Workload, tuned
from .product import Cpu

NEXT: Final = {"release": "next"}
WORKERS: Final[tuple[dict[str, str], ...]] = ({}, NEXT)
LAST: Final = f"default::{NAME}::**"
RULES: Final[tuple[dict[str, Any], ...]] = (
    {"match": "**::ml::**", "executor": "bus", "worker_selector": {"gpu": "true"}},
    {"match": "batch::**", "executor": "exec"},
    {"match": "**::heavy_*", "executor": "local"},
    {"match": "partners::*::*", "executor": "poll"},
    {"match": "shop::**::charge", "canary": {"worker_selector": NEXT, "percent": 10}},
    {"match": "shop::**::quote", "shadow": {"executor": "exec"}},
    {"match": "shop::**", "worker_selector": {"region": "eu"}},
    {"match": "*::reports::render_*", "executor": "exec"},
    {"match": "*::reports::**", "executor": "local"},
    {"match": "default::nightly::**", "executor": "poll"},
    {"match": f"*::{NAME}::*_by_hand", "worker_selector": {"desk": "1"}},
    {"match": LAST, "executor": "bus", "canary": {"worker_selector": NEXT, "percent": 50}},
)
ROUTED: Final[dict[str, Any]] = {
    "execution": {"default_executor": "bus", "rules": RULES},
    "executors": {
        "local": {"modules": [f"{__package__}.aside:worker"]},
        "exec": {"commands": {ASIDE: [sys.executable, "--version"]}},
        "poll": {"enabled": True},
    },
}
PLAIN: Final[dict[str, Any]] = {"executors": {"poll": {"enabled": False}}}
EXECUTORS: Final = ("bus", "exec", "local", "poll")


def run(load: Workload, number: int, step: Callable[[str], Progress]) -> dict[str, Any]:
    """Run one round. The order alternates between rounds, because the first variant affects the disk of the second."""
    variants = {"plain": PLAIN, "routed": ROUTED}
    figures: dict[str, Any] = {}
    for kind in variants if number % 2 else reversed(variants):
        figures |= _measure(load, kind, variants[kind], step, f"{number} of {load.rounds}")
    return figures


def _measure(
    load: Workload, kind: str, configuration: dict[str, Any], step: Callable[[str], Progress], round_of: str
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="stepwire-bench-") as name:
        directory = Path(name)
        shown = step(f"{kind} product, {round_of}")
        with product.running(directory, load, tuned(load, WORKERS), configuration) as running:
            throughput, cpu = running.run(load, shown)
            canary_counts = _canary_counts(running.rules()) if kind == "routed" else {}
        checked = product.check(directory, step(f"replaying the history, {round_of}"))
    return {
        f"{kind}_steps_per_s": throughput.steps_per_s,
        f"{kind}_cpu_us_per_step": cpu_us_per_step(cpu, throughput.steps),
        f"{kind}_tasks_replayed": checked,
        **canary_counts,
    }


def _canary_counts(routing: dict[str, Any]) -> dict[str, int]:
    """The number of steps on each side of the last rule's canary. Raises BenchFailed if the configuration is wrong."""
    executors, rules = routing["executors"], routing["rules"]
    if sorted(executors) != sorted(EXECUTORS) or len(rules) != len(RULES):
        raise BenchFailed(f"the broker has {len(rules)} rules and the executors {', '.join(executors)}")
    last = rules[-1]
    if not last["canary_steps"] or not last["other_steps"]:
        raise BenchFailed(f"the canary of the last rule did not split the steps: {last}")
    return {"canary_steps": last["canary_steps"], "other_steps": last["other_steps"]}


def cpu_us_per_step(cpu: Cpu, steps: int) -> dict[str, float]:
    return {process: seconds / steps * 1e6 for process, seconds in cpu._asdict().items()}
