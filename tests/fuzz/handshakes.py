"""`python -m tests.fuzz.handshakes --seed 1 --count 100000`: mutated ZMTP handshakes at the bus's tcp listeners.

Half of them meet a broker without keys, half a broker with keys (CURVE). Exit code 1: a broker ended or logged an
exception, `/livez` took longer than LIVEZ_MS_MAX, the database has an error, or a worker gets no step afterwards.
"""

import argparse
import contextlib
import json
import math
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import zmq
from stepwire_broker.bus.keys import server_key
from stepwire_broker.bus.keys.key_text import KeyPair, new_pair

from tests.attacks.listeners import TCP
from tests.attacks.target import Target, running_target
from tests.bus.strangers import GREETING, connected, frame, ready

from .mutations import of_bytes

LIVEZ_MS_MAX: Final = 250.0
THREADS: Final = 2
OPEN_MAX: Final = 50  # of one thread
ANSWER_S: Final = 20.0
KINDS: Final = ("SUB", "PUB", "XSUB", "XPUB", "PUSH", "ROUTER", "", "x" * 200)
CURVE_GREETING: Final = GREETING.replace(b"NULL" + bytes(16), b"CURVE" + bytes(15))
PLAIN_GREETING: Final = GREETING.replace(b"NULL" + bytes(16), b"PLAIN" + bytes(15))


def command(name: bytes, body: bytes = b"") -> bytes:
    data = bytes((len(name),)) + name + body
    return struct.pack("BB", 4, len(data)) + data if len(data) < 256 else struct.pack(">BQ", 6, len(data)) + data


def handshake(rng: random.Random, hello: bytes) -> list[bytes]:
    """The parts that a peer sends. The mutations leave the beginning intact more often than not, so that they reach
    every state of the handshake."""
    greeting = rng.choice((GREETING, CURVE_GREETING, CURVE_GREETING, PLAIN_GREETING))
    parts = [greeting]
    if greeting is CURVE_GREETING:
        parts += [command(b"HELLO", hello), command(b"INITIATE", rng.randbytes(rng.choice((0, 8, 113, 257, 5_000))))]
    elif greeting is PLAIN_GREETING:
        parts.append(command(b"HELLO", b"\x05admin\x06secret"))
    parts.append(ready(rng.choice(KINDS)[:200]))
    parts += rng.sample(_AFTERWARDS, 2)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(parts))
        match rng.randrange(5):
            case 0:
                parts[at:at] = [rng.choice(_COMMANDS)]
            case 1:
                del parts[at]
                if not parts:
                    return [rng.randbytes(20)]
            case 2:
                parts[at] = rng.randbytes(rng.randrange(1, 300))
            case _:
                parts[at] = of_bytes(rng, parts[at])
    return parts


_IDENTITY: Final = b"\x08Identity\x00\x00\x00\x05\x00\x00\x00\x00\x00"
_COMMANDS: Final = (
    command(b""),
    command(b"ERROR", b"\x03bad"),
    command(b"READY", b"\x0bSocket-Type\xff\xff\xff\xff"),
    command(b"READY", _IDENTITY * 20),
    command(b"WELCOME", bytes(160)),
    command(b"PING", b"\x00\x0acontext"),
    command(b"PONG"),
    command(b"SUBSCRIBE", b"x" * 300),
    command(b"CANCEL"),
    command(b"MESSAGE", bytes(100)),
    b"\x04\x00",
    b"\x06" + b"\xff" * 8,
    b"\x07\x00",
    b"\xf8\xff",
    b"\x02" + bytes(8),
    struct.pack(">BQ", 6, 2**62),
    struct.pack(">BQ", 6, 100_000) + bytes(3_000),
)
_MESSAGES: Final = (frame(b"\x01workers "), frame(b"\x00workers "), frame(b"workers {}"), frame(b"", more=True))
_AFTERWARDS: Final = (*_MESSAGES, b"", b"\xff" * 30, *_COMMANDS[:4])


def recorded_hello(server: KeyPair) -> bytes:
    """The body of the HELLO of a libzmq client that has the key of the server."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        zmq.Context() as context,
        context.socket(zmq.PUB) as client,
    ):
        client.linger = 0
        client.curve_serverkey = server.public.encode()
        client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
        client.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        peer, _ = listener.accept()
        with peer:
            peer.sendall(CURVE_GREETING[:32] + b"\x01" + CURVE_GREETING[33:])
            received = b""
            while len(received) < 64 + 2 + 200:
                received += peer.recv(4096)
    return received[64 + 2 + 6 :]


class Fuzzer:
    """Sends handshakes to one broker."""

    def __init__(self, target: Target, seed: str, hello: bytes, seconds: float) -> None:
        self._target = target
        self._seed = seed
        self._hello = hello
        self._ends_s = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def run(self, count: int) -> None:
        threads = [threading.Thread(target=self._send, args=(range(n, count, THREADS),)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _send(self, numbers: range) -> None:
        peers: list[socket.socket] = []
        for number in numbers:
            if time.monotonic() > self._ends_s:
                break
            rng = random.Random(f"{self._seed}.{number}")
            if len(peers) >= OPEN_MAX:
                _close(peers.pop(0), rng)
            try:
                peer = connected(self._target.ready[rng.choice(("steps", "results"))])
            except OSError as error:
                self.counts[type(error).__name__] += 1
                continue
            peers.append(peer)
            self.counts["handshakes"] += 1
            try:
                self._shake(peer, rng)
            except OSError as error:
                self.counts[type(error).__name__] += 1  # the broker has ended the connection
        for peer in peers:
            peer.close()

    def _shake(self, peer: socket.socket, rng: random.Random) -> None:
        waits = rng.random() < 0.1
        for part in handshake(rng, self._hello):
            if rng.random() < 0.1 and part:
                at = rng.randrange(len(part))
                peer.sendall(part[:at])
                part = part[at:]
            peer.sendall(part)
            if waits:
                peer.settimeout(0.02)
                with contextlib.suppress(TimeoutError):
                    peer.recv(4096)


def _close(peer: socket.socket, rng: random.Random) -> None:
    if rng.random() < 0.3:
        with contextlib.suppress(OSError):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    peer.close()


def fuzz(directory: Path, seed: int, count: int, seconds: float = math.inf, *, with_keys: bool) -> dict[str, Any]:
    """The report about one broker."""
    server = server_key.init(directory / "server.key", directory / "clients")
    pair, settings = new_pair(), dict(TCP)
    if with_keys:
        settings |= {"bus.curve.secret_file": str(directory / "server.key")}
        settings |= {"bus.curve.clients_dir": str(directory / "clients")}
        client = directory / "clients/honest"
        client.touch(0o600)
        client.write_text(f"public={pair.public}\nhandlers=**\nworkers=*\n")
    began_s = time.monotonic()
    livez_ms: list[float] = []
    ended = threading.Event()
    with running_target(directory, settings) as target:
        fuzzer = Fuzzer(target, f"{seed}.{with_keys}", recorded_hello(server), seconds)
        probing = threading.Thread(target=_probe, args=(target, ended, livez_ms, fuzzer.faults))
        probing.start()
        rss_mb, files = target.rss_mb(), target.files()
        try:
            fuzzer.run(count)
        finally:
            ended.set()
            probing.join()
        after_mb = target.rss_mb()
        keys = {"STEPWIRE_CURVE_SERVER_KEY": server.public, "STEPWIRE_CURVE_PUBLIC_KEY": pair.public,
                "STEPWIRE_CURVE_SECRET_KEY": pair.secret} if with_keys else {}  # fmt: skip
        _works(target, keys, fuzzer.faults)
        took_s, files_after = time.monotonic() - began_s, target.files()
        refusals = {code: n for code, n in target.refusals().items() if n}
    log = (directory / "log").read_text()
    if "Traceback" in log:
        fuzzer.faults.append(log[log.index("Traceback") :][:2_000])
    checked = subprocess.run(
        [sys.executable, "-m", "stepwire", "db", "check"], cwd=directory, capture_output=True, text=True, check=False
    )
    if checked.returncode:
        fuzzer.faults.append(f"db check: {checked.stdout}{checked.stderr}"[:500])
    return {
        "keys": with_keys,
        **fuzzer.counts,
        "seconds": round(took_s, 1),
        "livez_ms_max": round(max(livez_ms, default=0.0), 1),
        "livez_n": len(livez_ms),
        "rss_mb": [round(rss_mb), round(after_mb)],
        "files": [files, files_after],
        "refusals": refusals,
        "faults": fuzzer.faults,
    }


def _probe(target: Target, ended: threading.Event, livez_ms: list[float], faults: list[str]) -> None:
    while not ended.wait(0.05):
        began_s = time.monotonic()
        try:
            code = target.call("GET", "/livez")[0]
        except OSError as error:
            faults.append(f"/livez: {error!r}")
            continue
        livez_ms.append((time.monotonic() - began_s) * 1000)
        if code != 200:
            faults.append(f"/livez: {code}")


_WORKER: Final = """
import sys
from stepwire import Worker
worker = Worker.from_env(steps=[sys.argv[1]], results=[sys.argv[2]], name="honest")
worker.handler("shop.reserve")(lambda context: {"seats": 2})
worker.run()
"""


def _works(target: Target, keys: dict[str, str], faults: list[str]) -> None:
    command = [sys.executable, "-c", _WORKER, target.ready["steps"], target.ready["results"]]
    worker = subprocess.Popen(command, env={**os.environ, **keys}, stderr=subprocess.PIPE, text=True)
    try:
        task = json.loads(target.call("POST", "/v1/tasks", target.admin, {"workflow": "order"})[1])["task_id"]

        def state() -> str:
            text: str = json.loads(target.call("GET", f"/v1/tasks/{task}", target.admin)[1])["state"]
            return text

        if not _until(lambda: state() == "completed"):
            worker.terminate()
            faults.append(f"an honest task is {state()}; its worker: {worker.communicate()[1]}"[:2_000])
    finally:
        worker.terminate()
        worker.communicate(timeout=20)


def _until(condition: Callable[[], bool]) -> bool:
    ends_s = time.monotonic() + ANSWER_S
    while not condition():
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.05)
    return True


def run(seed: int, count: int, seconds: float) -> list[dict[str, Any]]:
    reports = []
    for with_keys in (False, True):
        with tempfile.TemporaryDirectory(prefix="fuzz") as directory:
            reports.append(fuzz(Path(directory), seed, count // 2, seconds / 2, with_keys=with_keys))
    return reports


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.handshakes", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop before COUNT after this time")
    options = parser.parse_args()
    reports = run(options.seed, options.count, options.seconds)
    print(json.dumps(reports, indent=1))
    return 1 if any(each["faults"] or each["livez_ms_max"] > LIVEZ_MS_MAX for each in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
