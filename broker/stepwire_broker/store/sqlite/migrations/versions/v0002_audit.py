"""The table `audit`, and the ends of its chains."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("lane", NUMBER, nullable=False),
        sa.Column("n", NUMBER, nullable=False),
        sa.Column("at_ms", NUMBER, nullable=False),
        sa.Column("principal", sa.Text, nullable=False),
        sa.Column("via", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text),
        sa.Column("hash", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("lane", "n"),
        sa.CheckConstraint("n > 0", name="n_counts"),
        sa.CheckConstraint("length(hash) = 64", name="hash_is_whole"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )

    op.create_table(
        "audit_chains",
        sa.Column("lane", NUMBER, primary_key=True, nullable=False),
        sa.Column("n", NUMBER, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("cut_n", NUMBER, nullable=False),
        sa.Column("cut_hash", sa.Text, nullable=False),
        sa.CheckConstraint("n >= cut_n AND cut_n >= 0", name="cut_is_before_the_end"),
        sa.CheckConstraint("length(hash) = 64 AND length(cut_hash) = 64", name="hashes_are_whole"),
        sqlite_strict=True,
    )
