"""A worker without a broker: which endpoint it names, what it says is wrong there, and how often."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from stepwire.actions import Link
from stepwire.worker.events import WorkerEvents
from stepwire.worker.reachability import diagnosis
from stepwire.worker.search import BrokerSearch
from stepwire_protocol.messages import Endpoints

from .dialogue import Broker, Dialogue


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of(steps: str, results: str | None = None) -> tuple[str, str]:
    return diagnosis(Link(steps, results or steps))


def test_a_missing_relative_socket_is_named_with_its_whole_path_and_the_directory_is_blamed(here: Path) -> None:
    endpoint, reason = of("ipc://.stepwire/steps.sock")
    assert endpoint == f"ipc://{here}/.stepwire/steps.sock"
    assert reason.startswith("there is no such socket. The path is relative to this directory: start the worker where")


def test_a_missing_absolute_socket_is_not_blamed_on_the_directory(here: Path) -> None:
    assert of(f"ipc://{here}/s")[1].startswith("there is no such socket. Start the broker, or set STEPWIRE_STEPS")


def test_a_file_that_is_no_socket_is_named(here: Path) -> None:
    (here / "s").touch()
    assert of("ipc://s")[1].startswith("this is not a socket")


def test_a_socket_of_a_dead_process_is_distinguished_from_a_missing_one(here: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind("s")
    assert of("ipc://s") == (f"ipc://{here}/s", "the socket exists, but no process listens there. Start the broker")


def test_the_results_endpoint_is_named_if_only_that_one_is_wrong(here: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.XPUB) as listening:
        listening.bind("ipc://s")
        assert of("ipc://s", "ipc://r")[0] == f"ipc://{here}/r"
        endpoint, reason = of("ipc://s")
    assert endpoint == f"ipc://{here}/s"
    assert reason.startswith("a process accepts connections there, but does not answer as a broker")


def test_a_closed_port_and_an_unknown_host_are_named() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert of(f"tcp://127.0.0.1:{port}")[1].startswith(f"no process listens on port {port}")
    assert "cannot be resolved" in of("tcp://no-such-host.invalid:7411")[1]


def test_the_search_reports_after_three_seconds_then_at_growing_intervals_and_starts_over_after_a_session() -> None:
    search = BrokerSearch(WorkerEvents("w:1", lambda broker: None, is_inside_broker=False))
    closed = [Link("ipc://s", "ipc://r")]
    search.update(closed, 0.0)
    times = []
    for _ in range(6):
        times.append(search.report_at_ms)
        search.update(closed, search.report_at_ms)
    assert times == [3_000, 10_000, 30_000, 60_000, 360_000, 660_000]
    search.update([], 700_000.0)
    assert search.report_at_ms == float("inf")
    search.update(closed, 800_000.0)
    assert search.report_at_ms == 803_000


def test_only_links_without_a_session_are_searched() -> None:
    links = (Link("tcp://h:1", "tcp://h:2"), Link("tcp://h:3", "tcp://h:4"))
    dialogue = Dialogue(links=links)
    assert dialogue.session.endpoints.without_session() == list(links)
    first = Broker(dialogue)
    first.brokers = [Endpoints("b1", *links[0])]
    first.welcome()
    assert dialogue.session.endpoints.link_of("b1") == links[0]
    assert dialogue.session.endpoints.without_session() == [links[1]]
    first.reset("unknown_session")
    assert dialogue.session.endpoints.without_session() == list(links)


def test_a_worker_that_starts_in_another_directory_says_so_after_three_seconds() -> None:
    program = "from stepwire import Worker; w = Worker(); w.handler('h')(lambda ctx: None); w.run()"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        line = next(line for line in worker.stderr if "no broker" in line)
        worker.kill()
    assert f" WARNING no broker for 3 s: ipc://{Path.cwd()}/.stepwire/steps.sock: there is no such socket." in line
