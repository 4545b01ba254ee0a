"""The kind of database that `database.url` selects."""

from typing import Final

from .errors import StoreRefused

SCHEMES: Final = ("sqlite",)


def scheme_of(url: str) -> str:
    """Return the URL's scheme, which selects the adapter. Raises StoreRefused for an unsupported database."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise StoreRefused(
            f"database.url is {url!r}: this broker stores its state in SQLite, so the URL needs a form like "
            "sqlite:///.stepwire/state.db"
        )
    return scheme
