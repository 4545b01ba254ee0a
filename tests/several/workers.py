"""Workers of every kind for several brokers, and the workflows that use them."""

import sys
from pathlib import Path
from typing import Any, Final

from tests.system.harness import Program, workflow

from .brokers import Brokers

PROGRAM: Final = Path(__file__).with_name("program.py")
LEVEL0: Final = Path(__file__).parents[1] / "system" / "level0_handler.py"
ONCE: Final = {"delivery_mode": "at_most_once"}

# By workflow: its share of the tasks, and its definition.
WORKFLOWS: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "orders": (
        70,
        workflow(
            "orders",
            {"name": "take", "handler_config": {"work_ms": 100}},
            {"name": "pay", "depends_on": ["take"], "handler_config": {"work_ms": 150}, **ONCE},
            {"name": "ship", "depends_on": ["pay"], "handler_config": {"work_ms": 100}},
        ),
    ),
    "retried": (
        10,
        workflow(
            "retried",
            {
                "name": "only",
                "handler_config": {"work_ms": 50, "failures": 1},
                "backoff": {"kind": "constant", "base_ms": 50, "jitter": "none"},
            },
        ),
    ),
    "polled": (
        10,
        workflow(
            "polled",
            {"name": "a", "handler_config": {"work_ms": 100}},
            {"name": "b", "depends_on": ["a"], "handler_config": {"work_ms": 100}, **ONCE},
        ),
    ),
    "plain": (
        5,
        workflow(
            "plain",
            {"name": "only", "handler_class": "plain.loop", "handler_config": {"work_ms": 10}, "timeout_ms": 5_000},
        ),
    ),
    "programs": (
        5,
        workflow("programs", {"name": "only", "handler_class": "program.run", "handler_config": {"work_ms": 100}}),
    ),
}


def configuration(ledgers: Path) -> str:
    """The part of every broker's configuration that decides where the steps run, in YAML."""
    return f"""\
execution:
  rules:
    - {{match: "default::polled::**", executor: poll}}
    - {{match: "default::programs::**", executor: exec}}
executors:
  exec:
    commands:
      program.run: {{argv: ["{sys.executable}", -I, -S, "{PROGRAM}", "{ledgers}"]}}
"""


def start_bus_worker(brokers: Brokers, name: str, slots: int) -> Program:
    return brokers.start_worker(name, "--slots", str(slots))


def start_poll_worker(brokers: Brokers, number: int, slots: int) -> Program:
    """Start a worker over HTTP. It prefers one broker, because a session belongs to one."""
    urls = [broker.url for broker in brokers]
    home = number % len(urls)
    listed = ",".join(urls[home:] + urls[:home])
    argv = [str(brokers.first.directory), f"p{number}", listed, "--slots", str(slots), "--seed", str(number)]
    return brokers.first.start_program("worker", f"worker-p{number}", "tests.system.poll_worker", argv)


def start_level0_handler(brokers: Brokers) -> Program:
    """Start a loop of level 0 that knows one handler."""
    site = brokers.first
    ledger = site.ledgers / f"worker-loop-{len(site.programs)}.jsonl"
    argv = [sys.executable, str(LEVEL0), str(ledger), str(site.directory / "gates"), "plain.loop"]
    return site.start_as("worker", "worker-loop", argv, brokers.endpoints())
