"""`python -m tests.attacks NAME --seconds 30`: attacks a broker of its own, and prints how it fared as JSON.

Each module of this folder with a function `attack` is an attack; its name is that of the module with hyphens. Exit code
1: `/livez` answered anything but 200 or too late, or the broker grew too much.
"""

import argparse
import contextlib
import importlib
import json
import pkgutil
import sys
import tempfile
from pathlib import Path

from .bus_peers import JOIN_S_MAX
from .listeners import LISTENERS
from .target import FIGURES, running_target

PACKAGE = "tests.attacks"
NOT_ATTACKS = ("__main__", "target", "clients", "bus_peers", "listeners", "many_connections", "test_attacks")


def names() -> list[str]:
    found = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    return sorted(name.replace("_", "-") for name in found if name not in NOT_ATTACKS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument(
        "name", nargs="+", choices=[*names(), "all"], help="the attack; several run one after the other"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="the duration of each attack")
    parser.add_argument("--listener", choices=sorted(LISTENERS), help="the bus, instead of the attack's own choice")
    options = parser.parse_args()
    chosen = names() if "all" in options.name else options.name
    outcomes = [run(name, options.seconds, options.listener) for name in chosen]
    return 0 if all(outcomes) else 1


def run(name: str, seconds: float, listener: str | None = None) -> bool:
    module = importlib.import_module(f"{PACKAGE}.{name.replace('-', '_')}")
    settings, open_files = dict(getattr(module, "SETTINGS", {})), getattr(module, "OPEN_FILES", None)
    with tempfile.TemporaryDirectory(prefix="attack") as directory, contextlib.ExitStack() as stack:
        if listener is not None:
            settings |= LISTENERS[listener](Path(directory))
        target = stack.enter_context(running_target(Path(directory), settings, open_files))
        if hasattr(module, "prepare"):
            module.prepare(target)
        with target.observed() as figures:
            sent = module.attack(target, seconds)
        report = {"attack": name, "listener": listener, "seconds": seconds, **figures.report(), "attacker": sent}
        verdict = figures.verdict(getattr(module, "RSS_MB_MAX", FIGURES.rss_mb))
        if sent.get("join_max_s", 0) > JOIN_S_MAX:
            verdict.append(f"a worker joined in {sent['join_max_s']} s, at most {JOIN_S_MAX}")
        report["refusals"] = target.refusals()
        report["disconnections"] = target.disconnections()
        print(json.dumps({**report, "ok": not verdict, "because": verdict}), flush=True)
    return not verdict


if __name__ == "__main__":
    sys.exit(main())
