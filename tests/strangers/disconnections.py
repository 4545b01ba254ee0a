"""Many disconnections while an honest worker runs steps: `python -m tests.strangers.disconnections --count 2000`.

Each hostile peer sends one user message to the steps socket, where a peer should only subscribe, and the broker ends
its connection. Meanwhile a step is submitted every 50 ms for the worker, which uses the same listener. Exit code 1: the
broker ended, kept a hostile connection or descriptors, ended an honest connection, or the worker was away too long.

With `--keys`, the listener has CURVE: the worker is the principal `honest`, and each hostile peer a principal of its
own, because the broker blocks a principal that repeats its offence. The last one does so, and is blocked.
"""

import argparse
import contextlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Final

import zmq
from stepwire_broker.bus.keys.key_text import KeyPair, new_pair

from tests.bus import strangers
from tests.system.harness import Program, Site, eventually, workflow

from .account import Account
from .kernel import connections_of, descriptors_of

AWAY_S: Final = 1.0
SUBMIT_EVERY_S: Final = 0.05
AT_ONCE: Final = 8
CLOSED_S: Final = 30.0
SETTLE_S: Final = 30.0
BOUND_S: Final = 60.0
FILES_MAX: Final = 8  # of connections to the database that are opened when they are needed
REFUSED_MS: Final = 2_000  # libzmq tells a refused client nothing before this time
KEYS: Final = ".stepwire/keys"
CLIENTS: Final = f"{KEYS}/clients"
CURVE: Final = {"bus.curve.secret_file": f"{KEYS}/server.key", "bus.curve.clients_dir": CLIENTS}
USER_MESSAGE: Final = strangers.frame(b"hello")
SHORT: Final = workflow("short", {"name": "only", "handler_class": "system.quick"})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.strangers.disconnections", description=__doc__)
    parser.add_argument("--count", type=int, default=2_000, help="the number of connections that the broker ends")
    parser.add_argument("--keys", action="store_true", help="all peers have keys")
    options = parser.parse_args()
    return run(options.count, Account(), has_keys=options.keys).print()


def run(count: int, account: Account, *, has_keys: bool = False) -> Account:
    with Site("tcp", CURVE if has_keys else None) as site:
        pairs = _make_principals(site, count) if has_keys else [None] * count
        broker = site.start_broker(bound_s=BOUND_S)
        site.apply(SHORT)
        worker = _start_worker(site, has_keys=has_keys)
        ports = frozenset(int(site.settings[f"bus.{name}"].rpartition(":")[2]) for name in ("steps", "results"))
        honest = connections_of(worker.pid, ports)
        assert {each.peer_port for each in honest} == ports, honest
        work = SteadyWork(site, worker)
        eventually(lambda: work.finished() >= 10 or None, "ten steps to run", BOUND_S)
        files, before = descriptors_of(broker.pid), _ended(site)
        began_s = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            closed = sum(threads.map(lambda pair: _send_one(site, pair), pairs))
        took_s = time.monotonic() - began_s
        submitted = work.end()
        eventually(lambda: work.finished() == submitted or None, "all steps to end", BOUND_S)
        account.check(broker.is_running, f"the broker has ended:\n{broker.stderr[-2000:]}")
        account.note(f"{closed} of {count} hostile connections closed in {took_s:.1f} s")
        account.check(closed == count, f"{count - closed} hostile connections were refused or stayed open")
        ended = _ended(site) - before
        account.check(ended == count, f"{ended} disconnections with the reason user_message are counted, not {count}")
        account.check(honest == connections_of(worker.pid, ports), "a connection of the honest worker has ended")
        if pairs[-1] is not None:
            repeats = pairs[-1]
            eventually(lambda: (_send_one(site, repeats) and _blocked(site) > 0) or None, "the block", BOUND_S)
            account.check(honest == connections_of(worker.pid, ports), "the honest worker has lost a connection")
        _report_work(account, work)
        _report_files(account, broker, files)
    return account


def _make_principals(site: Site, count: int) -> list[KeyPair | None]:
    """Create the brokers' keys, the principal `honest`, and this number of hostile ones. Returns the hostile pairs."""
    for words in (("init",), ("new", "honest", "--handlers", "system.*", "--out", "honest.key")):
        done = site.stepwire("keys", *words)
        assert done.returncode == 0, done
    pairs = [new_pair() for _ in range(count)]
    for number, pair in enumerate(pairs):
        path = site.directory / CLIENTS / f"hostile-{number}"
        path.touch(mode=0o600)
        path.write_text(f"public={pair.public}\n")
    return [*pairs]


def _start_worker(site: Site, *, has_keys: bool) -> Program:
    if not has_keys:
        return site.start_worker("honest", is_synced=False)
    argv = [sys.executable, "-m", "tests.system.handlers", str(site.directory), "honest", "--unsynced"]
    argv += ["--offers", "system.quick"]
    worker = site.start("honest", argv, {"STEPWIRE_CURVE_FILE": str(site.directory / "honest.key")})
    site.await_worker(worker, BOUND_S)
    return worker


def _send_one(site: Site, pair: KeyPair | None) -> bool:
    """Send one user message. True: the broker has closed the connection."""
    endpoint = site.settings["bus.steps"]
    return _send_plain(endpoint) if pair is None else _send_with_keys(site, endpoint, pair)


def _send_with_keys(site: Site, endpoint: str, pair: KeyPair) -> bool:
    lines = (site.directory / "honest.key").read_text().splitlines()
    with zmq.Context() as context, context.socket(zmq.XSUB) as peer:
        peer.linger = 0
        peer.reconnect_ivl = -1
        peer.handshake_ivl = REFUSED_MS
        peer.curve_serverkey = lines[0].split("'")[1].encode()
        peer.curve_publickey, peer.curve_secretkey = pair.public.encode(), pair.secret.encode()
        events = peer.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        peer.connect(endpoint)
        peer.send(b"hello")
        is_closed = bool(events.poll(int(CLOSED_S * 1000)))
        peer.disable_monitor()
        return is_closed


def _send_plain(endpoint: str) -> bool:
    try:
        peer = strangers.shake_hands(endpoint, "XSUB")
    except ConnectionError:
        return False
    with peer:
        peer.settimeout(CLOSED_S)
        try:
            peer.sendall(USER_MESSAGE)
            while peer.recv(4096):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
    return True


def _ended(site: Site) -> int:
    text = site.ask("GET", "/metrics").body.decode()
    [line] = [each for each in text.splitlines() if 'bus_disconnections_total{reason="user_message"}' in each]
    return int(line.rpartition(" ")[2])


def _blocked(site: Site) -> int:
    text = site.ask("GET", "/metrics").body.decode()
    return sum(int(line.rpartition(" ")[2]) for line in text.splitlines() if 'refusals_total{code="blocked"}' in line)


def _report_work(account: Account, work: "SteadyWork") -> None:
    waits_s, gaps_s = work.waits_s(), work.gaps_s()
    account.note(f"honest worker: {len(waits_s)} steps, median {sorted(waits_s)[len(waits_s) // 2] * 1000:.0f} ms")
    account.took("the longest time from a submission to the end of its step", max(waits_s), AWAY_S)
    account.took("the longest time without a completed step while steps were submitted", max(gaps_s), AWAY_S)


def _report_files(account: Account, broker: Program, before: int) -> None:
    with contextlib.suppress(AssertionError):
        eventually(lambda: descriptors_of(broker.pid) <= before + FILES_MAX or None, "descriptors", SETTLE_S)
    after = descriptors_of(broker.pid)
    account.note(f"descriptors of the broker: {before} before, {after} after")
    account.check(after <= before + FILES_MAX, f"the broker has {after} descriptors, {before} before")


class SteadyWork:
    """A task with one step every 50 ms, until `end`."""

    def __init__(self, site: Site, worker: Program) -> None:
        self._site, self._pid = site, worker.pid
        self._asked_s: dict[int, float] = {}  # by task
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._submit)
        self._thread.start()
        site.at_close(self._is_over.set)

    def end(self) -> int:
        """Stop submitting. Returns the number of submitted tasks."""
        self._is_over.set()
        self._thread.join()
        return len(self._asked_s)

    def finished(self) -> int:
        return len(self._runs())

    def waits_s(self) -> list[float]:
        """For each step, the time from its submission until its end."""
        return [run["wall"] / 1e9 - self._asked_s[run["task_id"]] for run in self._runs()]

    def gaps_s(self) -> list[float]:
        """The times between the ends of one step and the next."""
        ends_s = [run["wall"] / 1e9 for run in self._runs()]
        return [later - earlier for earlier, later in pairwise(ends_s)]

    def _runs(self) -> list[dict[str, Any]]:
        return self._site.runs("finished", pid=self._pid)

    def _submit(self) -> None:
        while not self._is_over.wait(SUBMIT_EVERY_S):
            asked_s = time.time()
            answer = self._site.ask("POST", "/v1/tasks", {"workflow": "short"})
            if answer.status == 201:
                self._asked_s[answer.body["task_id"]] = asked_s


if __name__ == "__main__":
    sys.exit(main())
