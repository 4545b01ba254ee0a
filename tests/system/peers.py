"""Level-0 handlers of a site: processes without an SDK, each with a ledger of its own."""

import sys
from pathlib import Path
from typing import Any, Final

from .handlers import GATES
from .harness import Program, Site, eventually

HANDLER: Final = Path(__file__).with_name("level0_handler.py")


def start_peers(site: Site, count: int, *handlers: str) -> list[Program]:
    """Start handlers, and wait until the broker knows them. With `handlers` they know no others."""
    before = len(peers_of(site))
    environ = {f"STEPWIRE_{name.upper()}": endpoint(site, name) for name in ("steps", "results")}
    started = []
    for _ in range(count):
        name = f"level0-{len(site.programs)}"
        argv = [sys.executable, str(HANDLER), str(site.ledgers / f"worker-{name}.jsonl"), str(site.directory / GATES)]
        argv += handlers
        started.append(site.start(name, argv, environ))
    eventually(lambda: len(peers_of(site)) == before + count or None, f"{count} more level-0 handlers")
    return started


def peers_of(site: Site) -> list[dict[str, Any]]:
    return [worker for worker in site.workers() if worker["level"] == 0]


def endpoint(site: Site, name: str) -> str:
    return str(site.settings.get(f"bus.{name}", f"ipc://{site.directory}/.stepwire/{name}.sock"))
