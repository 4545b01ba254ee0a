"""What routing costs: the product with four executors and twelve rules, beside the product with none of them.

The steps take the last rule, so all twelve are looked at, and its canary takes half of them. Both run the same two
workers, of which one bears the canary's label, so both can run as much at a time.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from . import product
from .aside import HANDLER as ASIDE
from .load import NAME, BenchFailed, Progress, Workload
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
    """One round. Who is first changes from round to round: the second meets the disk that the first has left."""
    kinds = {"plain": PLAIN, "routed": ROUTED}
    found: dict[str, Any] = {}
    for kind in kinds if number % 2 else reversed(kinds):
        found |= _one(load, kind, kinds[kind], step, f"{number} of {load.rounds}")
    return found


def _one(
    load: Workload, kind: str, configuration: dict[str, Any], step: Callable[[str], Progress], round_of: str
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="stepwire-bench-") as name:
        directory = Path(name)
        shown = step(f"{kind} product, {round_of}")
        with product.running(directory, load, configuration, WORKERS) as running:
            throughput, cpu = running.run(load, shown)
            counted = _canary(running.rules()) if kind == "routed" else {}
        checked = product.check(directory, step(f"replaying the history, {round_of}"))
    return {
        f"{kind}_steps_per_s": throughput.steps_per_s,
        f"{kind}_cpu_us_per_step": cpu_us_per_step(cpu, throughput.steps),
        f"{kind}_tasks_replayed": checked,
        **counted,
    }


def _canary(shown: dict[str, Any]) -> dict[str, int]:
    "How many steps took which side of the last rule. BenchFailed if what was to be measured was not configured."
    executors, rules = shown["executors"], shown["rules"]
    if sorted(executors) != sorted(EXECUTORS) or len(rules) != len(RULES):
        raise BenchFailed(f"the broker has {len(rules)} rules, and the executors {', '.join(executors)}")
    last = rules[-1]
    if not last["canary_steps"] or not last["other_steps"]:
        raise BenchFailed(f"of the last rule's steps {last['canary_steps']} went to its canary: {last}")
    return {"canary_steps": last["canary_steps"], "other_steps": last["other_steps"]}


def cpu_us_per_step(cpu: Cpu, steps: int) -> dict[str, float]:
    return {who: seconds / steps * 1e6 for who, seconds in cpu._asdict().items()}
