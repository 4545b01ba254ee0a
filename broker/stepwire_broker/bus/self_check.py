"""The broker's check of its own door, before it opens: a wrong option in libzmq would admit every key silently.

The broker connects to itself without a key, with a random key and with a good key. It starts only if the answers are
no, no and yes.
"""

import time
from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from .keys.key_text import KeyPair, new_pair

ANSWER_MAX_S: Final = 10.0
POLL_MS: Final = 5
_YES: Final = zmq.EVENT_HANDSHAKE_SUCCEEDED
_NO: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def fault_of(
    context: zmq.Context[zmq.Socket[bytes]],
    address: str,
    server_public: str,
    good: KeyPair,
    is_refused: Callable[[], bool],
) -> str | None:
    """Return what is wrong with the door at this address; None if nothing is. Blocks: call it in a thread.

    `is_refused`: the authenticator has refused the unknown key. libzmq tells the visitor only seconds later.
    """
    visits = (
        ("without a key", None, False),
        ("with an unknown key", new_pair(), False),
        ("with an allowed key", good, True),
    )
    for about, pair, is_right in visits:
        visitor = _Visitor(context, address, server_public, pair)
        try:
            answer = visitor.answer(is_refused if pair is not good else lambda: False)
        finally:
            visitor.close()
        if answer is not is_right:
            shown = {True: "was admitted", False: "was refused", None: "got no answer"}[answer]
            return f"a connection {about} {shown}"
    return None


class _Visitor:
    """A connection to the door, and its answer."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, server_public: str, pair: KeyPair | None
    ) -> None:
        self._socket = context.socket(zmq.SUB)
        self._socket.linger = 0
        self._events = self._socket.get_monitor_socket(_YES | _NO)
        if pair is not None:
            self._socket.curve_serverkey = server_public.encode()
            self._socket.curve_publickey = pair.public.encode()
            self._socket.curve_secretkey = pair.secret.encode()
        self._socket.connect(address)

    def answer(self, is_refused: Callable[[], bool]) -> bool | None:
        """Return whether the connection is admitted; None without an answer."""
        until_s = time.monotonic() + ANSWER_MAX_S
        while time.monotonic() < until_s:
            if self._events.poll(POLL_MS):
                return bool(recv_monitor_message(self._events)["event"] == _YES)
            if is_refused():
                return False
        return None

    def close(self) -> None:
        self._socket.disable_monitor()
        self._socket.close(0)
