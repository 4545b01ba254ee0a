"""The kind of database that `database.url` selects."""

from typing import Final

from .errors import StoreRefused

SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"
SCHEMES: Final = {"sqlite": SQLITE, "postgresql": POSTGRESQL, "postgres": POSTGRESQL}


def scheme_of(url: str) -> str:
    """Return the kind of database, which selects the adapter. Raises StoreRefused for an unsupported database."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise StoreRefused(
            f"database.url is {url!r}: it needs a form like sqlite:///.stepwire/state.db, or like "
            "postgresql://user@host/database"
        )
    return SCHEMES[scheme]
