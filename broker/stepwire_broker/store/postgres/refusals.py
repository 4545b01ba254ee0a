"""The sentences for errors of the server that end a start or a command."""

import psycopg

from stepwire_broker.store.errors import StoreRefused

from .address import PostgresAddress
from .failures import ConnectionLost, StatementFailed


class refusals_of:
    """Turn errors of the server into sentences for the operator. `work`: what an error ended. `setting`: of the
    address."""

    def __init__(self, address: PostgresAddress, work: str = "the start", setting: str = "database.url") -> None:
        self._address = address
        self._work = work
        self._setting = setting

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            raise StoreRefused(
                f"{self._setting} leads to {self._address.shown}, and this user lacks a right: "
                f"{error.diag.message_primary}. Grant it, or let the owner of the tables run the broker"
            ) from error
        if isinstance(error, psycopg.Error | ConnectionLost | StatementFailed):
            text = error.diag.message_primary if isinstance(error, psycopg.Error) else None
            raise StoreRefused(
                f"{self._setting} leads to {self._address.shown}, and {self._work} failed: {text or error}"
            ) from error
