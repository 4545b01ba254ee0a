"""CURVE for played brokers: key pairs, and the ZAP handler that admits or refuses them."""

import threading
from typing import Any, Final

import zmq
import zmq.utils.z85

ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"


class ServerKeys:
    """The CURVE key pair of the played brokers, and one key pair of a worker."""

    def __init__(self) -> None:
        self.public, self.secret = zmq.curve_keypair()
        self.client_public, self.client_secret = zmq.curve_keypair()

    def environ(self) -> dict[str, str]:
        """The variables of a worker with these keys."""
        return {
            "STEPWIRE_CURVE_SERVER_KEY": self.public.decode(),
            "STEPWIRE_CURVE_PUBLIC_KEY": self.client_public.decode(),
            "STEPWIRE_CURVE_SECRET_KEY": self.client_secret.decode(),
        }


class Gate:
    """The ZAP handler of one context, in a thread: admits the allowed keys, and refuses all others with 400."""

    def __init__(self, context: "zmq.Context[Any]", name: str) -> None:
        self.allowed: set[str] = set()  # public keys as Z85 text
        self.asked: list[str] = []
        self._name = name
        self._socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(ZAP_ENDPOINT)
        self._has_stopped = False
        self._thread = threading.Thread(target=self._serve, name="conform-zap", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._has_stopped = True
        self._thread.join()

    def _serve(self) -> None:
        while not self._has_stopped:
            if not self._socket.poll(50):
                continue
            version, sequence, *_, mechanism, key = self._socket.recv_multipart()
            public = zmq.utils.z85.encode(key).decode() if mechanism == b"CURVE" and len(key) == 32 else ""
            self.asked.append(public)
            is_allowed = public in self.allowed
            code, text = (b"200", b"OK") if is_allowed else (b"400", b"this key has no access")
            user = self._name.encode() if is_allowed else b""
            self._socket.send_multipart([version, sequence, code, text, user, b""])
        self._socket.close()
