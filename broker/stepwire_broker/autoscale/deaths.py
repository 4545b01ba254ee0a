"""Reports over the bus that a copy has ended, so that its steps run again at once.

The report uses the copies' own connection settings and key: a broker believes it from the principal of the worker only.
"""

import os
from collections.abc import Mapping
from typing import Final

import zmq
from stepwire import curve, environment
from stepwire_protocol import codec, topics
from stepwire_protocol.messages import Gone

VERSION: Final = "2.0"
LINGER_MS: Final = 500


class DeathReports:
    """Raises ConfigurationError if the variables of workers (STEPWIRE_RESULTS, STEPWIRE_CURVE_*) cannot be used."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        given = environment.read(environ)
        links = environment.links(given.steps, given.results, has_context=False)
        keys = curve.keys(given.curve_server_key, given.curve_public_key, given.curve_secret_key)
        self._context = zmq.Context[zmq.Socket[bytes]]()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.linger = LINGER_MS
        self._pub.reconnect_ivl = 100
        self._pub.reconnect_ivl_max = 1000
        self._pub.ipv6 = True
        if keys is not None:
            self._pub.curve_serverkey = keys.server.encode()
            self._pub.curve_publickey = keys.public.encode()
            self._pub.curve_secretkey = keys.secret.encode()
        for link in links:
            self._pub.connect(link.results)  # now, because a connection takes longer than a report may

    def report(self, worker: str) -> None:
        """Send one report. A report that is lost is no harm: the broker finds the death by itself, some time later."""
        try:
            self._pub.send(codec.frame(topics.WORKERS, Gone(v=VERSION, worker=worker)), zmq.DONTWAIT)
        except zmq.ZMQError:
            pass

    def close(self) -> None:
        self._pub.close()
        self._context.term()
