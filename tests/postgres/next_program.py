"""The next version of this program, with two migrations more: `python -m tests.postgres.next_program COMMAND …`.

Once a schema is released, the last released program takes the place of the version before.
"""

import os

from stepwire.__main__ import main
from stepwire_broker.store.postgres import migrating

ADDED = """
ALTER TABLE brokers ADD COLUMN zone text;
CREATE TABLE zones (name text PRIMARY KEY);
"""

INDEX = migrating.Index("tasks_of_uid", "tasks (uid)", is_unique=True)

if __name__ == "__main__":
    serves_from = os.environ.get("TEST_SERVES_FROM", migrating.known().schema)
    migrating.MIGRATIONS += (
        migrating.Migration("0098", serves_from, added_index=INDEX),
        migrating.Migration("0099", serves_from, ADDED),
    )
    main()
