"""Streams: committed events, and the messages of the bus."""

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from . import transport
from .transport import Calls, error_of, with_query

RECONNECT_S: Final = 60.0  # the time to wait for a broker whose connection was lost


class StreamCalls(Calls):
    """Iterators that end only with an error."""

    def tap(self, topic: str | None = None, task: int | None = None) -> Iterator[dict[str, Any]]:
        """The messages of the bus, without end. `{"dropped": n}`: the client was too slow, and missed n messages."""
        try:
            with self._transport.follow(with_query("/v1/tap", {"topic": topic, "task": task})) as (status, lines):
                if status >= 400:
                    raise error_of(status, b"".join(lines))
                for line in lines:
                    if line.startswith(b"data: "):
                        yield msgspec.json.decode(line[6:])
        except OSError as error:
            raise self._transport.unreachable(error) from error

    def events(
        self,
        *,
        after: str | None = None,
        task_id: int | None = None,
        workflow: str | None = None,
        namespace: str | None = None,
        kinds: Sequence[str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The events of tasks and steps, as they are committed, without end.

        The stream begins after the event whose `id` is `after`; "0" begins at the first stored event, and None with new
        events. After a lost connection, the stream continues without a gap or a repetition. Raises Unreachable if the
        broker cannot be reached for a minute.
        """
        kind = None if kinds is None else ",".join(kinds)
        query = {"task_id": task_id, "workflow": workflow, "namespace": namespace, "after": after, "kind": kind}
        path = with_query("/v1/events", query)
        last_id: str | None = None  # the id of the last event that was received completely
        next_id: str | None = None
        received_s = time.monotonic()
        while True:
            try:
                with self._transport.follow(path, last_id) as (status, lines):
                    if status >= 400 and not (last_id and status in transport.RETRIED):
                        raise error_of(status, b"".join(lines))
                    for line in lines if status < 400 else ():
                        received_s = time.monotonic()
                        if line.startswith(b"id: "):
                            next_id = line[4:].strip().decode()
                        elif line.startswith(b"data: ") and line.endswith(b"\n"):  # the stream can end anywhere
                            last_id = next_id
                            yield msgspec.json.decode(line[6:])
                        elif line == b"\n":
                            last_id = next_id
            except OSError as error:
                if last_id is None or time.monotonic() - received_s > RECONNECT_S:
                    raise self._transport.unreachable(error) from error
            time.sleep(random.uniform(0, transport.BACKOFF_BASE_S * 4))
