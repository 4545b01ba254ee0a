"""Ids that only operators see: who knows a worker's id and the id of its batch could speak for that worker.

Tokens that may only read see the worker's name, without the random digits, and no batch ids.
"""

import re
from collections.abc import AsyncIterator
from typing import Final

_NAME: Final = rb"([A-Za-z0-9._-]{1,48}):[0-9a-f]{16}"
_WORKER: Final = re.compile(rb'"worker":"' + _NAME + rb'"')
_NAMED: Final = re.compile(rb"`" + _NAME + rb"`")  # in a sentence for people
_BATCH: Final = re.compile(rb',"batch_id":"batch_[0-9a-f]{1,32}_[0-9]{1,19}"')


def without_ids(body: bytes) -> bytes:
    """Return the JSON without the digits of worker ids and without batch ids."""
    return _BATCH.sub(b"", _NAMED.sub(rb"`\1`", _WORKER.sub(rb'"worker":"\1"', body)))


async def stream_without_ids(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Each chunk holds whole events."""
    try:
        async for chunk in chunks:
            yield without_ids(chunk)
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()
