"""Orders that this broker stores for the owners of other lanes, on a connection of their own.

The connection is opened by the first order: a broker that is alone has none.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from stepwire_broker.store.errors import OrderNotStored

from .failures import ConnectionLost, StatementFailed
from .pipeline import Pipeline, Statement, StatementCall

KEPT_MS: Final = 3_600_000


class PostgresOrders:
    """The port `Orders` of store/ports.py. `connect` opens a connection and raises ConnectionLost."""

    def __init__(self, connect: Callable[[], Pipeline], schema: str) -> None:
        self._connect = connect
        self._pipeline: Pipeline | None = None
        self._thread = ThreadPoolExecutor(1, "stepwire-orders")
        self._put = Statement("put_order", _PUT.format(schema=schema))
        self._prune = Statement("prune_orders", _PRUNE.format(schema=schema))

    def put(self, lane: int, request: str) -> Future[int]:
        return self._thread.submit(self._store, lane, request)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        if self._pipeline is not None:
            self._pipeline.close()

    def _store(self, lane: int, request: str) -> int:
        try:
            if self._pipeline is None:
                self._pipeline = self._connect()
        except ConnectionLost as error:
            raise OrderNotStored(str(error)) from error
        try:
            stored, _ = self._pipeline.run(
                [StatementCall(self._put, (lane, request)), StatementCall(self._prune, (KEPT_MS,))]
            )
        except StatementFailed as error:
            raise OrderNotStored(str(error)) from error
        except BaseException:
            self._pipeline.close()
            self._pipeline = None
            raise
        ((order_id,),) = stored.rows
        return int(order_id or 0)


# The age of an order is measured by the clock of the database, which is one for all brokers.
_PUT: Final = """\
INSERT INTO {schema}.orders (lane, asked_ms, request)
VALUES ($1::int, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, $2::text) RETURNING id"""

_PRUNE: Final = """\
DELETE FROM {schema}.orders WHERE (lane, id) IN (SELECT lane, id FROM {schema}.orders
 WHERE asked_ms < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1::bigint LIMIT 1000)"""
