"""A token with the scope `submit` sends 80 batches of 15 MiB, each without its last byte."""

import socket
import threading
import time
from collections import Counter

from stepwire_broker.core.answers.scopes import Scope

from .clients import connect, submission
from .target import Target

MIB = 1024 * 1024
BATCH_BYTES = 15 * MIB
SHARE_MIN = 0.5


def attack(target: Target, seconds: float) -> dict[str, int]:
    token = target.token("bulky", Scope.SUBMIT)
    seen: Counter[str] = Counter()
    ends_s = time.monotonic() + seconds
    threads = [threading.Thread(target=_send, args=(target, token, ends_s, seen)) for _ in range(80)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(seen)


def _send(target: Target, token: str, ends_s: float, seen: Counter[str]) -> None:
    while time.monotonic() < ends_s:
        try:
            with connect(target, submission(token, BATCH_BYTES)) as connection:
                connection.settimeout(0.05)
                answer = _send_body(connection, ends_s)
        except OSError:
            answer = "closed"
        seen[answer] += 1
        time.sleep(0.2)


def _send_body(connection: socket.socket, ends_s: float) -> str:
    sent = 0
    while time.monotonic() < ends_s:
        try:
            answer = connection.recv(4096)
            return answer.split(b" ", 2)[1].decode() if answer else "closed"
        except TimeoutError:
            pass
        if sent < BATCH_BYTES - 1:
            connection.settimeout(5)
            connection.sendall(b" " * min(MIB, BATCH_BYTES - 1 - sent))
            sent += min(MIB, BATCH_BYTES - 1 - sent)
            connection.settimeout(0.05)
    return "unanswered"
