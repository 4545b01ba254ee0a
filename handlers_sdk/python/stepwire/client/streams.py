"""Streams: committed events, and the messages of the bus."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stepwire.errors import ClientError

from .outages import Patience, failed_try_of
from .transport import Calls, with_query


class StreamCalls(Calls):
    """Iterators that end only with an error."""

    def tap(self, topic: str | None = None, task: int | None = None) -> Iterator[dict[str, Any]]:
        """The messages of the bus, without end. `{"dropped": n}`: the client was too slow, and missed n messages.

        After a lost connection, the stream continues with later messages.
        """
        path = with_query("/v1/tap", {"topic": topic, "task": task})
        patience = self._transport.patience()
        while True:
            try:
                with self._transport.follow(path) as lines:
                    for line in lines:
                        patience.over()
                        if line.startswith(b"data: ") and line.endswith(b"\n"):
                            yield msgspec.json.decode(line[6:])
            except (OSError, ClientError) as error:
                self._pause(patience, error)

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
        events. After a lost connection, the stream continues without a gap or a repetition.
        """
        kind = None if kinds is None else ",".join(kinds)
        query = {"task_id": task_id, "workflow": workflow, "namespace": namespace, "after": after, "kind": kind}
        path = with_query("/v1/events", query)
        last_id: str | None = None  # the position after the last event that was received completely
        next_id: str | None = None
        patience = self._transport.patience()
        while True:
            try:
                with self._transport.follow(path, last_id) as lines:
                    for line in lines:
                        patience.over()
                        if line.startswith(b"id: "):
                            next_id = line[4:].strip().decode()
                        elif line.startswith(b"data: ") and line.endswith(b"\n"):  # the stream can end anywhere
                            last_id = next_id
                            yield msgspec.json.decode(line[6:])
                        elif line == b"\n":
                            last_id = next_id
            except (OSError, ClientError) as error:
                self._pause(patience, error)

    def _pause(self, patience: Patience, error: OSError | ClientError) -> None:
        """Wait before the stream is opened again. Raises the error if that would not help, or the time is over."""
        if isinstance(error, ClientError):
            failed = failed_try_of(error)
            if failed is None:
                raise error
        else:
            failed = self._transport.lost(error)
            if failed is None:
                raise self._transport.unreachable(error) from error
        self._transport.leave()
        patience.pause(failed)
