"""Ids of tasks and steps come in blocks. A block belongs to a lane, so the lane of an id is known without a read."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "blocks",
        sa.Column("number", NUMBER, primary_key=True, nullable=False),
        sa.Column("lane", sa.Integer, nullable=False),
        sa.Column("reserved", sa.Integer, nullable=False),
        sa.CheckConstraint("number BETWEEN 0 AND 8589934591", name="ids_fit_every_language"),
        sa.CheckConstraint("reserved BETWEEN 0 AND 1048576", name="reserved_fits"),
        sqlite_strict=True,
    )
    op.create_index("blocks_of_lane", "blocks", ["lane", "number"])
    # All tasks are in the lane with the highest id. The ids that were given out fill its blocks from the first on.
    op.execute(
        """
        WITH RECURSIVE used (number, ids) AS (
         SELECT 0, next - 1 FROM sequences WHERE name = 'ids'
         UNION ALL SELECT number + 1, ids FROM used WHERE (number + 1) * 1048576 < ids)
        INSERT INTO blocks SELECT number, (SELECT max(id) FROM lanes), min(1048576, ids - number * 1048576) FROM used
         WHERE EXISTS (SELECT 1 FROM lanes)
        """
    )
    op.drop_table("sequences")
