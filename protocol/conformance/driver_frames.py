"""Reads the frames of a driver as a broker does, with one difference.

A broker refuses a hello with a `max_message_bytes` below MESSAGE_BYTES_MIN. The kit gives sessions smaller limits, so
that short messages exceed them.
"""

import re
from typing import Final

from stepwire_protocol import codec, limits
from stepwire_protocol.messages import WorkerMessage

_SMALL: Final = re.compile(rb'("max_message_bytes":)([1-9][0-9]{0,4})(?=[,}])')


def decode_worker(body: bytes) -> WorkerMessage:
    """Raises InvalidMessage. A small `max_message_bytes` of a hello is MESSAGE_BYTES_MIN higher in the result."""
    if b'"type":"hello"' in body:
        body = _SMALL.sub(lambda found: found[1] + str(int(found[2]) + limits.MESSAGE_BYTES_MIN).encode(), body)
    return codec.decode_worker(body)
