"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")

STEP_STATES = """
CASE state
 WHEN 'dispatched' THEN batch_id IS NOT NULL AND worker IS NOT NULL AND delivery > 0 AND dispatched_ms IS NOT NULL
  AND finished_ms IS NULL
 WHEN 'completed' THEN batch_id IS NULL AND finished_ms IS NOT NULL AND output IS NOT NULL
 WHEN 'waiting' THEN batch_id IS NULL AND finished_ms IS NULL
 WHEN 'ready' THEN batch_id IS NULL AND finished_ms IS NULL AND ready_ms IS NOT NULL
 WHEN 'retry_wait' THEN batch_id IS NULL AND finished_ms IS NULL AND not_before_ms IS NOT NULL
 WHEN 'held' THEN finished_ms IS NULL
 WHEN 'failed' THEN batch_id IS NULL AND finished_ms IS NOT NULL
 WHEN 'cancelled' THEN batch_id IS NULL AND finished_ms IS NOT NULL
 WHEN 'skipped' THEN batch_id IS NULL AND finished_ms IS NOT NULL
 ELSE FALSE END""".strip()

TASK_STATES = """
CASE state
 WHEN 'running' THEN finished_ms IS NULL
 WHEN 'completed' THEN finished_ms IS NOT NULL
 WHEN 'pending' THEN finished_ms IS NULL AND owner_epoch = 0
 WHEN 'paused' THEN finished_ms IS NULL
 WHEN 'failed' THEN finished_ms IS NOT NULL
 WHEN 'cancelled' THEN finished_ms IS NOT NULL
 ELSE FALSE END""".strip()


def upgrade() -> None:

    op.create_table(
        "meta",
        sa.Column("name", sa.Text, primary_key=True, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sqlite_strict=True,
    )

    op.create_table(
        "controls",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text),
        sa.Column("position", NUMBER),
        sa.Column("revision", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("kind", "name"),
        sa.CheckConstraint("revision > 0", name="revision_counts"),
        sa.CheckConstraint("value IS NOT NULL OR kind = 'removed'", name="value_is_given"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("controls_newest", "controls", ["revision"])

    op.create_table(
        "brokers",
        sa.Column("id", sa.Text, primary_key=True, nullable=False),
        sa.Column("epoch", NUMBER, nullable=False),
        sa.Column("lease_until_ms", NUMBER, nullable=False),
        sa.Column("lease_ms", NUMBER, nullable=False),
        sa.CheckConstraint("epoch > 0", name="epoch_is_given"),
        sqlite_strict=True,
    )

    op.create_table(
        "lanes",
        sa.Column("id", NUMBER, primary_key=True, nullable=False),
        sa.Column("broker", sa.Text, sa.ForeignKey("brokers.id"), nullable=False),
        sa.Column("lane", sa.Integer, nullable=False),
        sa.Column("epoch", NUMBER, nullable=False),
        sa.Column("seq", NUMBER, nullable=False),
        sa.UniqueConstraint("broker", "lane", name="lanes_of_broker"),
        sa.CheckConstraint("seq >= 0 AND epoch > 0", name="seq_counts"),
        sqlite_strict=True,
    )

    op.create_table(
        "sequences",
        sa.Column("name", sa.Text, primary_key=True, nullable=False),
        sa.Column("next", NUMBER, nullable=False),
        sa.CheckConstraint("next BETWEEN 1 AND 9007199254740992", name="next_fits_every_language"),
        sqlite_strict=True,
    )

    op.create_table(
        "workflows",
        sa.Column("id", NUMBER, primary_key=True, nullable=False),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("created_ms", NUMBER, nullable=False),
        sa.Column("active", sa.Integer, nullable=False),
        sa.UniqueConstraint("namespace", "name", "version", name="workflows_version"),
        sa.CheckConstraint("active IN (0, 1)", name="active_is_yes_or_no"),
        sqlite_strict=True,
    )
    op.create_index(
        "workflows_active",
        "workflows",
        ["namespace", "name"],
        unique=True,
        sqlite_where=sa.text("active = 1"),
        postgresql_where=sa.text("active = 1"),
    )

    op.create_table(
        "tasks",
        sa.Column("id", NUMBER, primary_key=True, nullable=False),
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("workflow_id", NUMBER, sa.ForeignKey("workflows.id"), nullable=False),
        sa.Column("lane", sa.Integer, nullable=False),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attention", sa.Text),
        sa.Column("cancelling", sa.Integer, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("labels", sa.Text),
        sa.Column("context_bytes", NUMBER, nullable=False),
        sa.Column("created_ms", NUMBER, nullable=False),
        sa.Column("finished_ms", NUMBER),
        sa.Column("deadline_ms", NUMBER),
        sa.Column("owner", sa.Text),
        sa.Column("owner_epoch", NUMBER, nullable=False),
        sa.Column("wake_ms", NUMBER),
        sa.Column("wants", sa.Text),
        sa.Column("context", sa.Text, nullable=False),
        sa.CheckConstraint(TASK_STATES, name="state_fits"),
        sa.CheckConstraint("cancelling IN (0, 1)", name="cancelling_is_yes_or_no"),
        sa.CheckConstraint("length(uid) = 32", name="uid_is_whole"),
        sqlite_strict=True,
    )
    op.create_index(
        "tasks_left",
        "tasks",
        [sa.text("priority DESC"), "id", "owner_epoch"],
        sqlite_where=sa.text("finished_ms IS NULL AND wants IS NULL AND wake_ms IS NULL"),
        postgresql_where=sa.text("finished_ms IS NULL AND wants IS NULL AND wake_ms IS NULL"),
    )
    op.create_index(
        "tasks_wanting",
        "tasks",
        ["wants", sa.text("priority DESC"), "id", "owner_epoch"],
        sqlite_where=sa.text("finished_ms IS NULL AND wants IS NOT NULL"),
        postgresql_where=sa.text("finished_ms IS NULL AND wants IS NOT NULL"),
    )
    op.create_index(
        "tasks_due",
        "tasks",
        ["wake_ms", "priority", "id", "owner_epoch", "wants"],
        sqlite_where=sa.text("finished_ms IS NULL AND wake_ms IS NOT NULL"),
        postgresql_where=sa.text("finished_ms IS NULL AND wake_ms IS NOT NULL"),
    )
    op.create_index("tasks_of_workflow", "tasks", ["workflow_id", "id"])
    op.create_index(
        "tasks_failed",
        "tasks",
        ["id"],
        sqlite_where=sa.text("state = 'failed'"),
        postgresql_where=sa.text("state = 'failed'"),
    )
    op.create_index(
        "tasks_ended",
        "tasks",
        ["state", "finished_ms"],
        sqlite_where=sa.text("finished_ms IS NOT NULL"),
        postgresql_where=sa.text("finished_ms IS NOT NULL"),
    )
    op.create_index(
        "tasks_with_attention",
        "tasks",
        ["id"],
        sqlite_where=sa.text("attention IS NOT NULL"),
        postgresql_where=sa.text("attention IS NOT NULL"),
    )

    op.create_table(
        "steps",
        sa.Column("id", NUMBER, primary_key=True, nullable=False),
        sa.Column("task_id", NUMBER, sa.ForeignKey("tasks.id"), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("handler_class", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("delivery", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("accept_from", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("batch_id", sa.Text),
        sa.Column("worker", sa.Text),
        sa.Column("granted", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("lost_sessions", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("ready_ms", NUMBER),
        sa.Column("dispatched_ms", NUMBER),
        sa.Column("started_ms", NUMBER),
        sa.Column("not_before_ms", NUMBER),
        sa.Column("finished_ms", NUMBER),
        sa.Column("deadline_ms", NUMBER),
        sa.Column("run_ms", NUMBER),
        sa.Column("error", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("key_number", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("earlier", sa.Text),
        sa.Column("handle", sa.Text),
        sa.Column("output_bytes", NUMBER, nullable=False, server_default=sa.text("0")),
        sa.Column("output", sa.Text),
        sa.CheckConstraint(STEP_STATES, name="state_fits"),
        sa.CheckConstraint("granted = 0 OR granted = 1", name="granted_is_yes_or_no"),
        sqlite_strict=True,
    )
    op.create_index("steps_of_task", "steps", ["task_id", "position"], unique=True)
    op.create_index(
        "steps_held",
        "steps",
        ["id"],
        sqlite_where=sa.text("state = 'held'"),
        postgresql_where=sa.text("state = 'held'"),
    )
    op.create_index(
        "steps_failed",
        "steps",
        ["id"],
        sqlite_where=sa.text("state = 'failed'"),
        postgresql_where=sa.text("state = 'failed'"),
    )

    op.create_table(
        "step_stderr",
        sa.Column("id", NUMBER, primary_key=True, nullable=False),
        sa.Column("delivery", sa.Integer, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sqlite_strict=True,
    )

    op.create_table(
        "keys",
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("task_id", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "key"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )

    op.create_table(
        "history",
        sa.Column("lane_id", NUMBER, nullable=False),
        sa.Column("seq", NUMBER, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("task_id", NUMBER, nullable=False),
        sa.Column("at_ms", NUMBER, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("lane_id", "seq", "position"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("history_of_task", "history", ["task_id"])

    op.create_table(
        "parked",
        sa.Column("id", NUMBER, primary_key=True, nullable=False),
        sa.Column("at_ms", NUMBER, nullable=False),
        sa.Column("task_id", NUMBER),
        sa.Column("step_id", NUMBER),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sqlite_strict=True,
    )
