"""Measures the SDK of each language: next to a bare loop in that language, and in the product.

The programs are those of a clone of the repository: `bin/echo`, a level-0 loop on the plain ZeroMQ binding, and
`bin/conform`, the SDK's conformance worker. All sockets are tcp, which every binding has. In each round the languages
take turns, so that a slower machine slows all of them.
"""

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from . import product
from .load import STEPS, BenchFailed, Progress, Setup, Workload
from .without_storage import HANDLER, BareEcho, BrokerWithoutStorage, TcpEndpoints, bound

Figures: TypeAlias = dict[str, float]

LANGUAGES: Final = ("python", "go", "java", "node", "ruby", "rust")
SDKS: Final = Path(__file__).resolve().parents[3] / "handlers_sdk"
WINDOW: Final = 64  # batches in flight
BATCHES: Final = (1, 10)
IDLE_S: Final = 3.0


class LanguagesLoad(msgspec.Struct, frozen=True):
    """The settings of a run, printed with its figures."""

    rounds: int = 3
    batches: int = 20_000  # of each size, to the loop and to the SDK
    lone_steps: int = 2_000  # one at a time, for the latency
    tasks: int = 10_000  # of four steps each, in the product
    warm_up_batches: int = 20_000  # of each size: compilers at run time need them
    window: int = WINDOW


QUICK: Final = LanguagesLoad(rounds=1, batches=2_000, lone_steps=200, tasks=1_000, warm_up_batches=500)


def programs(language: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The commands of the bare loop and of the conformance worker. Raises BenchFailed if they are not there."""
    if language == "python":
        return (sys.executable, "-m", f"{__package__}.bare_echo"), (sys.executable, "-m", "stepwire.conform")
    folder = SDKS / language / "bin"
    for name in ("echo", "conform"):
        if not os.access(folder / name, os.X_OK):
            raise BenchFailed(
                f"there is no {folder / name}: this measurement needs a clone of the repository,"
                f" in which `sh handlers_sdk/{language}/check.sh build` was run"
            )
    options = environ_words(language)
    return (*options, str(folder / "echo")), (*options, str(folder / "conform"))


@functools.cache
def environ_words(language: str) -> tuple[str, ...]:
    """The words before the commands of a language, so that the loop and the SDK run as its README deploys the SDK."""
    if language != "ruby" or subprocess.run(["ruby", "--yjit", "-e", ""], stderr=subprocess.DEVNULL).returncode != 0:
        return ()  # this Ruby has no compiler
    return ("env", "RUBYOPT=--yjit")


def run(load: LanguagesLoad, languages: list[str], progress: Progress) -> list[dict[str, Figures]]:
    """The figures of each language in each round."""
    commands = {language: programs(language) for language in languages}
    rounds = []
    for number in range(load.rounds):
        order = languages if number % 2 == 0 else languages[::-1]
        figures = {language: _of_language(load, *commands[language], progress) for language in order}
        rounds.append({language: figures[language] for language in languages})
    return rounds


def _of_language(load: LanguagesLoad, echo: tuple[str, ...], worker: tuple[str, ...], progress: Progress) -> Figures:
    figures = _bare(load, echo)
    progress(1)
    figures |= _sdk(load, worker)
    progress(1)
    figures |= _product(load, worker)
    progress(1)
    return figures


def _bare(load: LanguagesLoad, command: tuple[str, ...]) -> Figures:
    with bound() as sockets, _program(command, sockets.endpoints):
        loop = BareEcho(sockets)
        loop.connect()
        figures = {}
        for size in BATCHES:
            loop.run(load.warm_up_batches, size, load.window)
            seconds = loop.run(load.batches, size, load.window)
            figures[f"bare_{size}_steps_per_s"] = load.batches * size / seconds
        lone_ms = sorted(loop.run(1, 1, 1) * 1000 for _ in range(load.lone_steps))
        return figures | {"bare_p50_ms": statistics.median(lone_ms)}


def _sdk(load: LanguagesLoad, command: tuple[str, ...]) -> Figures:
    with bound() as sockets, _program(command, sockets.endpoints) as process:
        broker = BrokerWithoutStorage(sockets)
        broker.connect()
        figures = {}
        for size in BATCHES:
            broker.run(load.warm_up_batches * size, size, load.window)
            before = product.cpu_s_of(process.pid)
            seconds = broker.run(load.batches * size, size, load.window)
            figures[f"sdk_{size}_steps_per_s"] = load.batches * size / seconds
            cpu_s = product.cpu_s_of(process.pid) - before
            figures[f"sdk_{size}_cpu_us_per_step"] = cpu_s * 1e6 / (load.batches * size)
        lone_ms = sorted(broker.run(1, 1, 1) * 1000 for _ in range(load.lone_steps))
        figures["sdk_p50_ms"] = statistics.median(lone_ms)
        figures["sdk_p99_ms"] = lone_ms[int(len(lone_ms) * 0.99)]
        before = product.cpu_s_of(process.pid)
        broker.idle(IDLE_S)
        figures["idle_percent"] = (product.cpu_s_of(process.pid) - before) / IDLE_S * 100
        figures["rss_mb"] = _rss_mb(process.pid)
        return figures


def _product(load: LanguagesLoad, command: tuple[str, ...]) -> Figures:
    """The whole product with one worker: tasks of four steps, after a warm-up of as many."""
    work = Workload(tasks=load.tasks)
    setup = Setup(command=command, handler=HANDLER, is_tcp=True)
    with (
        tempfile.TemporaryDirectory(prefix="stepwire-bench-") as name,
        product.running(Path(name), work, setup) as running,
    ):
        running.run(work, lambda _: None)
        done, cpu = running.run(work, lambda _: None)
    steps = load.tasks * len(STEPS)
    return {"product_steps_per_s": done.steps_per_s, "product_worker_cpu_us_per_step": cpu.worker * 1e6 / steps}


@contextmanager
def _program(command: tuple[str, ...], endpoints: TcpEndpoints) -> Iterator["subprocess.Popen[bytes]"]:
    environ = {"STEPWIRE_STEPS": endpoints.steps, "STEPWIRE_RESULTS": endpoints.results, "STEPWIRE_NAME": "bench"}
    with tempfile.TemporaryDirectory(prefix="stepwire-bench-") as name:
        try:
            with product.process(list(command), Path(name), environ) as process:
                yield process
        except BenchFailed as failure:
            time.sleep(0.1)  # what the program wrote at its end
            log = (Path(name) / "log").read_text(errors="replace")[-2_000:]
            raise BenchFailed(f"{' '.join(command)}: {failure}\n{log}") from None


def _rss_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return float("nan")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def medians(rounds: list[dict[str, Figures]]) -> dict[str, dict[str, Any]]:
    """For each language the median of each figure; the ratios are medians of the ratios within a round."""
    summary: dict[str, dict[str, Any]] = {}
    for language in rounds[0]:
        of_language = [one[language] for one in rounds]
        summary[language] = {name: statistics.median(one[name] for one in of_language) for name in of_language[0]}
        for size in BATCHES:
            ratios = [one[f"sdk_{size}_steps_per_s"] / one[f"bare_{size}_steps_per_s"] for one in of_language]
            summary[language][f"sdk_of_bare_{size}"] = statistics.median(ratios)
        if "python" in rounds[0]:
            ratios = [one[language]["product_steps_per_s"] / one["python"]["product_steps_per_s"] for one in rounds]
            summary[language]["product_of_python"] = statistics.median(ratios)
    return summary
