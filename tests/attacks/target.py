"""The broker under attack, as a process of its own, and what honest clients see of it meanwhile."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from stepwire_broker.api.token import Grant, add_token
from stepwire_broker.core.answers.scopes import Scope

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
EVERY_S = 0.05
TIMEOUT_S = 10.0


class Allowed(NamedTuple):
    """The figures that the broker must keep during an attack."""

    livez_p99_ms: float = 250.0
    rss_mb: float = 150.0


FIGURES = Allowed()


class Series:
    """Answers to one kind of request."""

    def __init__(self) -> None:
        self.codes: Counter[str] = Counter()
        self.took_ms: list[float] = []

    def report(self) -> dict[str, Any]:
        took_ms = sorted(self.took_ms) or [0.0]
        at = {name: took_ms[min(len(took_ms) - 1, int(len(took_ms) * part))] for name, part in _QUANTILES}
        return {"codes": dict(self.codes), **{name: round(value, 1) for name, value in at.items()}}


_QUANTILES = (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0))


class Figures:
    """The observations of honest clients and of the kernel during an attack."""

    def __init__(self, target: "Target") -> None:
        self._target = target
        self.livez, self.reads, self.submissions = Series(), Series(), Series()
        self.rss_mb = [target.rss_mb()]
        self.files = [target.files()]
        self._cpu_s = target.cpu_s()
        self._ended = threading.Event()
        probes = (
            (self.livez, None, "GET", "/livez", None),
            (self.reads, target.token("reader", Scope.READ), "GET", "/v1/tasks", None),
            (self.submissions, target.token("shop", Scope.SUBMIT), "POST", "/v1/tasks", {"workflow": "order"}),
        )
        self._threads = [threading.Thread(target=self._probe, args=probe) for probe in probes]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def report(self) -> dict[str, Any]:
        first, most, last = self.rss_mb[0], max(self.rss_mb), self._target.rss_mb()
        return {
            "livez": self.livez.report(),
            "reads": self.reads.report(),
            "submissions": self.submissions.report(),
            "rss_mb": {"before": round(first), "most": round(most), "after": round(last)},
            "cpu_s": round(self._target.cpu_s() - self._cpu_s, 1),
            "files": {"before": self.files[0], "most": max(self.files), "after": self._target.files()},
        }

    def verdict(self, rss_mb: float) -> list[str]:
        """The reasons why the broker did not hold; empty if it did."""
        wrong = []
        if set(self.livez.codes) != {"200"}:
            wrong.append(f"/livez was answered {dict(self.livez.codes)}")
        p99_ms = self.livez.report()["p99_ms"]
        if p99_ms > FIGURES.livez_p99_ms:
            wrong.append(f"/livez p99 is {p99_ms} ms, at most {FIGURES.livez_p99_ms:.0f}")
        grown = max(self.rss_mb) - self.rss_mb[0]
        if grown > rss_mb:
            wrong.append(f"the broker grew by {grown:.0f} MB, at most {rss_mb:.0f}")
        return wrong

    def _probe(self, series: Series, token: str | None, method: str, path: str, body: Any) -> None:
        while not self._ended.wait(EVERY_S):
            began_s = time.monotonic()
            try:
                code = str(self._target.call(method, path, token, body)[0])
            except OSError as error:
                code = type(error).__name__
            series.codes[code] += 1
            series.took_ms.append((time.monotonic() - began_s) * 1000)
            if series is self.livez:
                self.rss_mb.append(self._target.rss_mb())
                self.files.append(self._target.files())


class Target:
    """A broker that an attack may use as it likes."""

    def __init__(self, directory: Path, process: "subprocess.Popen[str]", ready: dict[str, Any]) -> None:
        self.directory = directory
        self.process = process
        self.ready = ready
        host, _, port = ready["http"].rpartition("//")[2].rpartition(":")
        self.address = (host, int(port))
        self.admin = (directory / ".stepwire/token").read_text().strip()

    def token(self, name: str, *scopes: Scope) -> str:
        """A new token, which the broker accepts at once."""
        return add_token(self.directory / ".stepwire/tokens", Grant(name, frozenset(scopes)))

    def call(self, method: str, path: str, token: str | None = None, body: Any = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            if body is None:
                connection.request(method, path, headers=headers)
            else:
                headers["Content-Type"] = "application/json"
                connection.request(method, path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()

    def refusals(self) -> dict[str, int]:
        return self._counts("_refusals_total{")

    def disconnections(self) -> dict[str, int]:
        return {reason: n for reason, n in self._counts("_disconnections_total{").items() if n}

    def _counts(self, metric: str) -> dict[str, int]:
        lines = self.call("GET", "/metrics", self.admin)[1].decode().splitlines()
        counts = [line for line in lines if metric in line]
        return {line.partition('"')[2].partition('"')[0]: int(line.rpartition(" ")[2]) for line in counts}

    def rss_mb(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * PAGE_BYTES / 1024 / 1024

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @contextmanager
    def observed(self) -> Iterator[Figures]:
        figures = Figures(self)
        try:
            yield figures
        finally:
            figures.end()


WORKFLOW = {"name": "order", "version": "1", "steps": [{"name": "reserve", "handler_class": "shop.reserve"}]}


@contextmanager
def running_target(
    directory: Path, settings: Mapping[str, str] = MappingProxyType({}), open_files: int | None = None
) -> Iterator[Target]:
    command = [sys.executable, "-m", "stepwire", "-q", "-o", "json", "serve", "--listen", "127.0.0.1:0"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    if open_files is not None:
        command = ["prlimit", f"--nofile={open_files}:{open_files}", *command]
    with open(directory / "log", "w") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready, (directory / "log").read_text()
        target = Target(directory, process, json.loads(ready))
        assert target.call("POST", "/v1/workflows", target.admin, WORKFLOW)[0] == 201
        yield target
        assert process.poll() is None, (directory / "log").read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
