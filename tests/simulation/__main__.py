"""`python -m tests.simulation --seeds 500 --jobs 2`, `--merge FILE…`, `--replay SEED`, `--planted`, `--record`.

With `--session go`, the workers have the session of the Go SDK. With `-- COMMAND`, that of the driver COMMAND.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from . import campaign, coverage, planted, shrink
from .driven import CannotPlay, DriverCommand, Drivers, command_of, driver_of, known_sessions
from .faults import HOSTILE_KINDS, KEY_KINDS, KINDS, LANE_KINDS
from .world import World

REGRESSIONS = Path(__file__).parent / "regressions"
TRACE_SHOWN = 120
COVERED_FROM_SEEDS = 500
SHRUNK_MAX = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--planted", action="store_true", help="search for every planted bug, and print the seed that finds it"
    )
    parser.add_argument("--only", help="with --planted: only bugs whose name contains this")
    parser.add_argument("--note", action="store_true", help="with --planted: record the seeds that the tests try first")
    parser.add_argument(
        "--replay", type=int, metavar="SEED", help="run one seed; if it fails, shrink it and print its trace"
    )
    parser.add_argument("--keep", action="store_true", help="with --replay: store it as a regression")
    parser.add_argument(
        "--hostile", action="store_true", help="every seed has a thief that forges messages, and revoked principals"
    )
    parser.add_argument("--rotating", action="store_true", help="the brokers' key is rotated in every seed")
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 2, 3), help="number of brokers in every seed")
    parser.add_argument("--losing", action="store_true", help="the only broker loses lanes, and takes them again")
    parser.add_argument("--record", action="store_true", help="store a shrunk run for each bug that was real")
    parser.add_argument(
        "--figures",
        metavar="FILE",
        help="write the figures to this JSON file; if it already holds them, run nothing",
    )
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="add up the figures of several campaigns")
    parser.add_argument(
        "--session",
        choices=known_sessions(),
        default="python",
        help="session of the workers: Python's in this process (default), or a driver's, one process for each worker",
    )
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="a driver to use in place of --session")
    options = parser.parse_args()
    driver = command_of(options.command) if options.command else driver_of(options.session)
    if (options.hostile or options.rotating or options.losing) and (options.record or options.keep or options.note):
        parser.error("--record, --keep and --note store seeds without --hostile, --rotating and --losing")
    if options.brokers > 1 and (driver is not None or options.losing or options.rotating or options.record):
        parser.error("--brokers needs Python's session, and neither --losing, --rotating nor --record")
    if driver is not None and (options.planted or options.record or options.keep):
        parser.error("--planted, --record and --keep need Python's session in this process")
    try:
        with _drivers(driver) as drivers:
            return _run(options, driver, drivers)
    except CannotPlay as error:
        print(error, file=sys.stderr)
        return 2


@contextmanager
def _drivers(driver: DriverCommand | None) -> Iterator[Drivers | None]:
    """The drivers of this process, which end with it. Raises CannotPlay before the first seed."""
    if driver is None:
        yield None
        return
    drivers = Drivers(driver)
    try:
        drivers.try_out()
        yield drivers
    finally:
        drivers.close()


def _run(options: argparse.Namespace, driver: DriverCommand | None, drivers: Drivers | None) -> int:
    always = frozenset(HOSTILE_KINDS if options.hostile else ()) | frozenset(KEY_KINDS if options.rotating else ())
    always |= frozenset(LANE_KINDS if options.losing else ())
    if options.planted:
        return planted.report(options.first, options.seeds, options.jobs, options.only, options.note, always)
    if options.record:
        return _record(options.first, options.seeds)
    if options.replay is not None:
        return _replay(options.replay, options.keep, drivers, always, options.brokers)
    if options.merge:
        return _merge(options.merge, options.figures)
    seeds = range(options.first, options.first + options.seeds)
    return _campaign(seeds, options.jobs, options.figures, driver, drivers, always, options.brokers)


def _campaign(
    seeds: range,
    jobs: int,
    figures: str | None,
    driver: DriverCommand | None,
    drivers: Drivers | None,
    always: frozenset[str],
    brokers: int,
) -> int:
    commit = _commit()
    if figures is not None and Path(figures).exists():
        done = _read(figures)
        session = "python" if driver is None else driver.name
        wanted = session, sorted(always), brokers, [(seeds.start, len(seeds))], [commit]
        of_done = done.session, done.always, done.brokers, done.ranges, done.commits
        if done.is_whole and of_done == wanted:
            return _report(done)
    shrunk = 0

    def show(seed: int, violation: str) -> list[str] | None:
        """Report the seed at once: the campaign continues."""
        nonlocal shrunk
        print(f"seed {seed} at {commit}: {violation}", flush=True)
        shrunk += 1
        if shrunk > SHRUNK_MAX:
            return None
        try:
            kept, runs = shrink.shrink(seed, drivers, always, brokers)
        except AssertionError as error:
            print(f"seed {seed} did not fail when it was run again: {error}", flush=True)
            return None
        print(f"seed {seed} at {commit}: {len(kept)} faults suffice ({runs} runs): {kept}", flush=True)
        return kept

    def progress(so_far: campaign.Sum) -> None:
        speed = f"{so_far.seeds / so_far.seconds:.1f} a second, {so_far.seeds / so_far.cpu_seconds:.1f} a CPU second"
        results = f"{so_far.faults:,} faults, {len(so_far.violations)} seeds broke a promise"
        print(f"{so_far.seeds:,} of {len(seeds):,} seeds from {seeds.start}: {speed}; {results}", flush=True)
        write(so_far)

    def write(so_far: campaign.Sum) -> None:
        so_far.commits = [commit]
        if figures is not None:
            _write(figures, so_far)

    total = campaign.run(seeds, jobs, show, progress, driver, always, brokers)
    write(total)
    return _report(total)


def _merge(files: list[str], figures: str | None) -> int:
    total = campaign.Sum()
    for file in files:
        try:
            total.merge(_read(file))
        except ValueError as error:
            print(f"{file}: {error}", file=sys.stderr)
            return 2
    if figures is not None:
        _write(figures, total)
    return _report(total)


def _read(file: str) -> campaign.Sum:
    return msgspec.json.decode(Path(file).read_bytes(), type=campaign.Sum)


def _write(file: str, total: campaign.Sum) -> None:
    """Replace the file at once: a campaign may be ended at any time."""
    new = Path(file + ".new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(total), indent=1) + b"\n")
    new.replace(file)


def _report(total: campaign.Sum) -> int:
    where = ", ".join(f"{first}-{first + count - 1}" for first, count in total.ranges)
    speed = f"{total.seeds / total.seconds:.1f} a second, {total.seeds / total.cpu_seconds:.1f} a CPU second"
    print(f"{total.seeds:,} seeds ({where}) at {', '.join(total.commits)}, {speed}; session: {total.session}")
    if total.brokers > 1:
        print(f"every seed had {total.brokers} brokers")
    if total.always:
        print(f"every seed had: {', '.join(total.always)}")
    days = total.simulated_ms / 86_400_000
    print(f"{total.events:,} events in {days:,.2f} simulated days, {days / 365.25:.2f} years")
    counts = total.counts
    print(f"{total.faults:,} faults of {len(KINDS)} kinds:")
    for kind in KINDS:
        print(f"  {kind:30}{counts['fault', kind]:12,}")
    print("figures:")
    for name, count in sorted(total.figures.items()):
        print(f"  {name:30}{count:12,}  {1000 * count / total.seeds:10.1f} in 1,000 seeds")
    is_judged = total.seeds >= COVERED_FROM_SEEDS and total.brokers == 1  # several have no quotas, rules or keys yet
    missing = coverage.missing(counts, total.seeds) if is_judged else []
    for what, which in missing:
        print(f"never reached: {what} {which}")
    for broken in total.violations:
        print(f"seed {broken.seed}: {broken.violation}; faults that suffice: {broken.kept}")
    print(f"{len(total.violations)} seeds broke a promise")
    return 1 if total.violations or missing else 0


def _replay(seed: int, keeps: bool, drivers: Drivers | None, always: frozenset[str], brokers: int) -> int:
    report = World(seed, keeps_trace=True, drivers=drivers, always=always, brokers=brokers).run()
    if report.violation is None:
        print(f"seed {seed}: no promise broken; {report.events} events, {len(report.fired)} faults")
        return 0
    print(f"seed {seed} at {_commit()}: {report.violation}")
    kept, runs = shrink.shrink(seed, drivers, always, brokers)
    print(f"{len(report.fired)} faults shrunk to {len(kept)} in {runs} runs: {kept}")
    small = World(seed, frozenset(kept), keeps_trace=True, drivers=drivers, always=always, brokers=brokers).run()
    for line in small.trace[-TRACE_SHOWN:]:
        print("  " + line[:400])
    print(small.violation)
    if keeps:
        _keep(f"seed {seed}", seed, kept, small.violation, brokers)
    return 1


def _record(first: int, seeds: int) -> int:
    """Store a shrunk run for each real bug, in which the bug would show again."""
    missed = 0
    for bug in planted.BUGS:
        if not bug.was_real:
            continue
        result = planted.hunt(bug, first, seeds)
        if result.seed is None:
            print(f"{bug.name}: not found in {seeds} seeds")
            missed += 1
            continue
        with planted.planted(bug):
            kept, runs = shrink.shrink(result.seed)
            small = World(result.seed, frozenset(kept)).run()
        _keep(bug.name, result.seed, kept, small.violation)
        print(f"{bug.name}: seed {result.seed}, {len(kept)} faults after {runs} runs: {small.violation}", flush=True)
    return 1 if missed else 0


def _keep(what: str, seed: int, kept: list[str], violation: str | None, brokers: int = 1) -> None:
    REGRESSIONS.mkdir(exist_ok=True)
    case = {"what": what, "seed": seed, "kept": kept, "violation": violation, "commit": _commit()}
    if brokers > 1:
        case["brokers"] = brokers
    name = re.sub(r"[^a-z0-9]+", "-", what.lower()).strip("-")
    (REGRESSIONS / f"{name}.json").write_text(json.dumps(case, indent=1, ensure_ascii=False) + "\n")


def _commit() -> str:
    result = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return result.stdout.strip() or "an unknown commit"


if __name__ == "__main__":
    sys.exit(main())
