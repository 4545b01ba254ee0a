"""The next version of this program, with two migrations more: `python -m tests.postgres.next_program COMMAND …`.

Once a schema is released, the last released program takes the place of the version before.
"""

import importlib.metadata
import os
from typing import Final

VERSION: Final = "99.0.0"
ADDED: Final = """
ALTER TABLE brokers ADD COLUMN zone text;
CREATE TABLE zones (name text PRIMARY KEY);
"""


def main() -> None:
    """Run the command. The modules read the version of the program when they are imported."""
    installed = importlib.metadata.version

    def version(distribution_name: str) -> str:
        return VERSION if distribution_name == "stepwire" else installed(distribution_name)

    importlib.metadata.version = version
    from stepwire.__main__ import main as command
    from stepwire_broker.store.postgres import migrating

    serves_from = os.environ.get("TEST_SERVES_FROM", migrating.known().schema)
    index = migrating.Index("tasks_of_uid", "tasks (uid)", is_unique=True)
    migrating.MIGRATIONS += (
        migrating.Migration("0098", serves_from, added_index=index),
        migrating.Migration("0099", serves_from, ADDED),
    )
    command()


if __name__ == "__main__":
    main()
