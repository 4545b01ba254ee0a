"""Which database `database.url` names."""

from typing import Final

from .errors import StoreRefused

SCHEMES: Final = ("sqlite",)


def scheme_of(url: str) -> str:
    """The URL's scheme, which decides the adapter. Raises StoreRefused for a database that this broker cannot use."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise StoreRefused(
            f"database.url is {url!r}: this broker keeps its state in SQLite, so it needs a form like "
            "sqlite:///.stepwire/state.db"
        )
    return scheme
