"""The cost of keys: the product over tcp with CURVE, compared with the product over tcp without keys.

Both variants use the settings for the highest throughput, one worker and one connection for each of its sockets.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from . import product
from .load import Progress, Workload, tuned
from .routes import cpu_us_per_step

KINDS: Final = ("null", "curve")


def run(load: Workload, number: int, step: Callable[[str], Progress]) -> dict[str, Any]:
    """Run one round. The order alternates between rounds, because the first variant affects the disk of the second."""
    figures: dict[str, Any] = {}
    for kind in KINDS if number % 2 else reversed(KINDS):
        figures |= _measure(load, kind, step, f"{number} of {load.rounds}")
    return figures


def _measure(load: Workload, kind: str, step: Callable[[str], Progress], round_of: str) -> dict[str, Any]:
    setup = msgspec.structs.replace(tuned(load), is_tcp=True, has_keys=kind == "curve")
    with tempfile.TemporaryDirectory(prefix="stepwire-bench-") as name:
        directory = Path(name)
        with product.running(directory, load, setup) as running:
            throughput, cpu = running.run(load, step(f"{kind.upper()}, {round_of}"))
            latencies_ms = running.latencies_ms(load.lone_tasks)
        checked = product.check(directory, step(f"replaying the history, {round_of}"))
    return {
        f"{kind}_steps_per_s": throughput.steps_per_s,
        f"{kind}_latencies_ms": latencies_ms,
        f"{kind}_cpu_us_per_step": cpu_us_per_step(cpu, throughput.steps),
        f"{kind}_tasks_replayed": checked,
    }
