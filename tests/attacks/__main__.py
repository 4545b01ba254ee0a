"""`python -m tests.attacks NAME --seconds 30`: attacks a broker of its own, and prints how it fared as JSON.

Each module of this folder with a function `attack` is an attack; its name is that of the module with hyphens. With
`all`, every attack runs in turn, and a table is printed at the end. Exit code 1: `/livez` answered anything but 200 or
too late, the broker grew too much, a worker joined too late, or too few steps of the honest load were completed.
"""

import argparse
import contextlib
import importlib
import json
import pkgutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from .bus_peers import JOIN_S_MAX
from .honest_load import RATE, SHARE_MIN, offered
from .listeners import LISTENERS
from .target import FIGURES, running_target

PACKAGE = "tests.attacks"
ALL = "all"
COLUMNS = ("attack", "livez p99", "limit", "RSS", "limit", "join", "limit", "honest", "before", "limit", "")


def names() -> list[str]:
    found = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    return sorted(name.replace("_", "-") for name in found if "\ndef attack(" in _text_of(name))


def _text_of(name: str) -> str:
    return (Path(__file__).parent / f"{name}.py").read_text()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("name", nargs="+", choices=[*names(), ALL], help="the attack; several run one after the other")
    parser.add_argument("--seconds", type=float, default=30.0, help="the duration of each attack")
    parser.add_argument("--listener", choices=sorted(LISTENERS), help="the bus, instead of the attack's own choice")
    parser.add_argument("--rate", type=int, default=RATE, help="steps/s of the honest load; 0 for none")
    options = parser.parse_args()
    chosen = names() if ALL in options.name else options.name
    reports = []
    for name in chosen:
        reports.append(run(name, options.seconds, options.listener, options.rate))
        # With `all` the table is the result, so the reports leave stdout to it.
        print(json.dumps(reports[-1]), file=sys.stderr if ALL in options.name else sys.stdout, flush=True)
    if ALL in options.name:
        print(table(reports))
    return 0 if all(report["ok"] for report in reports) else 1


def run(name: str, seconds: float, listener: str | None = None, rate: int = RATE) -> dict[str, Any]:
    module = importlib.import_module(f"{PACKAGE}.{name.replace('-', '_')}")
    listener = listener or getattr(module, "LISTENER", None)
    rss_mb = getattr(module, "RSS_MB_MAX", FIGURES.rss_mb)
    share_min = getattr(module, "SHARE_MIN", SHARE_MIN)
    with tempfile.TemporaryDirectory(prefix="attack") as directory, contextlib.ExitStack() as stack:
        settings = {} if listener is None else LISTENERS[listener](Path(directory))
        target = stack.enter_context(running_target(Path(directory), settings, getattr(module, "OPEN_FILES", None)))
        if hasattr(module, "prepare"):
            module.prepare(target)
        honest = stack.enter_context(offered(target, rate)) if rate else None
        if honest is not None:
            honest.begin()
        with target.observed() as figures:
            sent = module.attack(target, seconds)
            load = None if honest is None else honest.end()
        report = {"attack": name, "listener": listener, "seconds": seconds, **figures.report(), "attacker": sent}
        report["honest"] = load
        report["limits"] = {"livez_p99_ms": FIGURES.livez_p99_ms, "rss_mb": rss_mb, "share": share_min}
        verdict = figures.verdict(rss_mb)
        if sent.get("join_max_s", 0) > JOIN_S_MAX:
            verdict.append(f"a worker joined in {sent['join_max_s']} s, at most {JOIN_S_MAX}")
        if load is not None and load["share"] < share_min:
            verdict.append(f"{load['share']:.0%} of the offered steps were completed, at least {share_min:.0%}")
        report["refusals"] = target.refusals()
        report["disconnections"] = target.disconnections()
    return {**report, "ok": not verdict, "because": verdict}


def table(reports: list[dict[str, Any]]) -> str:
    """One row for each attack: each figure with its limit."""
    rows = [COLUMNS, *map(_row, reports)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _row(report: dict[str, Any]) -> tuple[str, ...]:
    limits, rss, load = report["limits"], report["rss_mb"], report["honest"]
    join_s = report["attacker"].get("join_max_s")
    return (
        report["attack"],
        f"{report['livez']['p99_ms']:.0f} ms",
        f"{limits['livez_p99_ms']:.0f} ms",
        f"+{rss['most'] - rss['before']} MB",
        f"+{limits['rss_mb']:.0f} MB",
        "" if join_s is None else f"{join_s:.1f} s",
        "" if join_s is None else f"{JOIN_S_MAX:.0f} s",
        *(
            ("", "", "")
            if load is None
            else (f"{load['share']:.0%}", f"{load['share_before']:.0%}", f"{limits['share']:.0%}")
        ),
        "pass" if report["ok"] else "FAIL: " + "; ".join(report["because"]),
    )


if __name__ == "__main__":
    sys.exit(main())
