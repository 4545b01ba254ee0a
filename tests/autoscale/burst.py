"""A burst of steps on autoscaled workers of two languages, from none and back, and on fixed numbers of workers.

    python -m tests.autoscale.burst [--steps 10000] [--ms 200] [--copies 20] [--slots 4] [--step 10] [--cooldown 500ms]
        [--runs fixed,autoscale,few] [--go PROGRAM]

`fixed` has all workers connected before the burst, `few` two of them, and `autoscale` none: two autoscalers, one for
the command of each language, start up to half of the copies each. Every run of a step is in a ledger of its worker: the
command fails if a step is missing, ran twice, or was cut off, or if the burst on autoscaled workers takes more than
twice as long as on `fixed`. `--go` names the conformance program of the SDK for Go; by default it is compiled.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests import toolchains
from tests.system.harness import REPOSITORY, Program, Site, eventually, workflow

HANDLER: Final = "conform.book"
BATCH: Final = 500
PATIENCE_S: Final = 520.0
FEW: Final = 2
RATIO_MAX: Final = 2.0
LOOK_S: Final = 0.2


class Burst(NamedTuple):
    """The settings of all runs."""

    steps: int
    ms: int
    copies: int
    slots: int
    step: int
    cooldown: str
    commands: dict[str, list[str]]  # by language


class Outcome(NamedTuple):
    """One run. `empty_s`: from the first submission until no task was open."""

    empty_s: float
    copies_most: int
    back_s: float | None  # from then until the last copy had ended
    once: int  # steps that ran once, from start to end
    lost: int
    again: int  # steps that ran more than once
    cut_off: int  # runs without an end
    died: int  # copies that did not leave as they were told


def fixed(burst: Burst, workers: int) -> Outcome:
    """The burst on this number of workers, which are connected before it begins."""
    with Site() as site:
        _start_broker(site)
        languages = [language for _ in range(workers) for language in burst.commands][:workers]
        programs = [
            site.start_other_worker(f"{language}-{n}", burst.commands[language], slots=burst.slots, wait=False)
            for n, language in enumerate(languages)
        ]
        for program in programs:
            site.await_worker(program, PATIENCE_S)
        empty_s = _until_empty(site, burst, _submit(site, burst))
        return _outcome(site, burst, empty_s, workers, None, 0)


def autoscaled(burst: Burst) -> Outcome:
    """The burst on workers that two autoscalers start."""
    with Site() as site:
        _start_broker(site)
        scalers = [_start_scaler(site, burst, language) for language in burst.commands]
        begun_s = _submit(site, burst)
        most = 0

        def look() -> None:
            nonlocal most
            most = max(most, len(site.workers()))

        empty_s = _until_empty(site, burst, begun_s, look)
        eventually(lambda: all(_are_gone(each) for each in scalers) or None, "all copies to end", PATIENCE_S)
        back_s = time.monotonic() - begun_s - empty_s
        died = sum(event["event"] == "died" for each in scalers for event in _events(each))
        for each in scalers:
            each.ask_to_end()
            each.wait()
        return _outcome(site, burst, empty_s, most, back_s, died)


def _start_broker(site: Site) -> None:
    site.ledgers.mkdir(exist_ok=True)
    site.start_broker()


def _start_scaler(site: Site, burst: Burst, language: str) -> Program:
    half = burst.copies // len(burst.commands)
    words = [sys.executable, "-m", "stepwire", "worker", "autoscale", "-o", "jsonl", "--url", site.url]
    words += ["--handler", HANDLER, "--min", "0", "--max", str(half), "--step", str(burst.step)]
    words += ["--slots", str(burst.slots), "--cooldown", burst.cooldown, "--", *burst.commands[language]]
    environ = {"STEPWIRE_NAME": language, "CONFORM_BOOK": str(site.ledgers)}
    return site.start(f"autoscale-{language}", words, environ)


def _events(scaler: Program) -> list[dict[str, Any]]:
    whole, _, _ = scaler.stdout.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def _are_gone(scaler: Program) -> bool:
    kinds = Counter(event["event"] for event in _events(scaler))
    return kinds["serving"] > 0 and kinds["ended"] + kinds["died"] >= kinds["serving"]


def _submit(site: Site, burst: Burst) -> float:
    """Submit the burst. Returns when it began."""
    site.apply(workflow("burst", {"name": "only", "handler_class": HANDLER, "handler_config": {"work_ms": burst.ms}}))
    begun_s = time.monotonic()
    for first in range(0, burst.steps, BATCH):
        tasks = [{"workflow": "burst"}] * min(BATCH, burst.steps - first)
        answer = site.ask("POST", "/v1/tasks/batch", {"tasks": tasks}, timeout_s=PATIENCE_S)
        assert answer.status == 201, answer
    return begun_s


def _until_empty(site: Site, burst: Burst, begun_s: float, look: Any = None) -> float:
    until_s = begun_s + PATIENCE_S
    while time.monotonic() < until_s:
        if look is not None:
            look()
        if _figure(site, "stepwire_completed_steps_total") >= burst.steps:
            return time.monotonic() - begun_s
        time.sleep(LOOK_S)
    raise AssertionError(f"the burst is not done after {PATIENCE_S:g} s")


def _figure(site: Site, name: str) -> float:
    with site.client() as client:
        text = client._transport.get_once("/metrics").body.decode()
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0.0)


def _outcome(site: Site, burst: Burst, empty_s: float, copies_most: int, back_s: float | None, died: int) -> Outcome:
    started: Counter[int] = Counter()
    ended: Counter[int] = Counter()
    for path in site.ledgers.glob("worker-*.jsonl"):
        for line in path.read_text().splitlines():
            run = json.loads(line)
            if run["event"] == "started":
                started[run["step_id"]] += 1
            elif run["event"] == "finished":
                ended[run["step_id"]] += 1
    return Outcome(
        empty_s,
        copies_most,
        back_s,
        once=sum(count == 1 and ended[step] == 1 for step, count in started.items()),
        lost=burst.steps - len(ended),
        again=sum(count > 1 for count in started.values()),
        cut_off=sum(started.values()) - sum(ended.values()),
        died=died,
    )


def conform_programs(scratch: Path, go: str | None) -> dict[str, list[str]]:
    """The commands of the conformance workers of two SDKs."""
    if go is None:
        go = str(scratch / "stepwire-conform")
        source = REPOSITORY / "handlers_sdk/go"
        toolchains.run(
            "go", "build", "-o", go, "./cmd/stepwire-conform", directory=source, environ=toolchains.go(scratch)
        )
    return {"python": [sys.executable, "-m", "stepwire.conform"], "go": [go]}


def faults(burst: Burst, outcomes: dict[str, Outcome]) -> list[str]:
    """Return what is wrong with these runs."""
    found = []
    for name, outcome in outcomes.items():
        wrong = {"lost": outcome.lost, "run again": outcome.again, "cut off": outcome.cut_off, "died": outcome.died}
        found += [f"{name}: {number} {what}" for what, number in wrong.items() if number]
        if outcome.once != burst.steps:
            found.append(f"{name}: {outcome.once} of {burst.steps} steps ran once")
    if "fixed" in outcomes and "autoscale" in outcomes:
        ratio = outcomes["autoscale"].empty_s / outcomes["fixed"].empty_s
        if ratio > RATIO_MAX:
            found.append(f"the autoscaled burst took {ratio:.2f} times as long as the fixed one")
    return found


def measured(burst: Burst, runs: Sequence[str]) -> dict[str, Outcome]:
    outcomes = {}
    for name in runs:
        if name == "autoscale":
            outcomes[name] = autoscaled(burst)
        else:
            outcomes[name] = fixed(burst, burst.copies if name == "fixed" else FEW)
        _print_row(name, outcomes[name])
    return outcomes


def _print_row(name: str, outcome: Outcome) -> None:
    back = "-" if outcome.back_s is None else f"{outcome.back_s:.1f}"
    print(
        f"{name:<10} {outcome.empty_s:>8.1f} {outcome.copies_most:>7} {back:>7} {outcome.once:>7} {outcome.lost:>5} "
        f"{outcome.again:>6} {outcome.cut_off:>8} {outcome.died:>5}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--ms", type=int, default=200)
    parser.add_argument("--copies", type=int, default=20)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--step", type=int, default=10)
    parser.add_argument("--cooldown", default="500ms")
    parser.add_argument("--runs", default="fixed,autoscale,few")
    parser.add_argument("--go")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        commands = conform_programs(Path(scratch), given.go)
        burst = Burst(given.steps, given.ms, given.copies, given.slots, given.step, given.cooldown, commands)
        settings = ", ".join(f"{name} {value}" for name, value in burst._asdict().items() if name != "commands")
        print(f"{settings}, languages {'+'.join(commands)}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        print(f"{'run':<10} {'empty s':>8} {'workers':>7} {'back s':>7} {'once':>7} {'lost':>5} ", end="")
        print(f"{'again':>6} {'cut off':>8} {'died':>5}", flush=True)
        found = faults(burst, measured(burst, given.runs.split(",")))
    for line in found:
        print(f"WRONG  {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
