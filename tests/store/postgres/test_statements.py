"""The statements of a group on a real server: their plans, their rows and their HOT updates."""

import json
from collections.abc import Callable

import pytest
from stepwire_broker.store.postgres.failures import StatementFailed
from stepwire_broker.store.postgres.fence import Fence
from stepwire_broker.store.postgres.pipeline import BEGIN, COMMIT, Pipeline, Statement, StatementCall
from stepwire_broker.store.postgres.pruning import statements_of
from stepwire_broker.store.postgres.statements import ColdStatements, HotStatements

from tests.postgres.chains import NOW, Chains, write
from tests.postgres.plans import fill
from tests.postgres.server import PostgresServer

Open = Callable[..., Pipeline]

STATES = ("empty", "young", "large")
ROWS_LARGE = 100_000
WITHOUT_INDEX = ("Seq Scan on", "Hash Join", "Merge Join")


def fill_with(server: PostgresServer, schema: str, open_pipeline: Open, state: str) -> None:
    """Young: a few rows that no ANALYZE has seen. Large: many rows, analysed."""
    if state == "young":
        write(open_pipeline(), Chains(schema, 0, 50), 10, 50)
    elif state == "large":
        fill(server, schema, ROWS_LARGE)


def plans(pipeline: Pipeline, schema: str, statement: Statement, values: str) -> str:
    """The generic plan of a statement, which a prepared statement keeps, inside a group."""
    name = statement.name
    calls = [
        BEGIN,
        StatementCall(Fence(schema).statement, (0, 0, 1)),
        StatementCall(Statement("set", "SELECT set_config('plan_cache_mode', 'force_generic_plan', true)")),
        StatementCall(Statement(f"prepare_{name}", f"PREPARE plan_{name} AS {statement.text}")),
        StatementCall(Statement(f"explain_{name}", f"EXPLAIN EXECUTE plan_{name} {values}")),
        StatementCall(Statement(f"deallocate_{name}", f"DEALLOCATE plan_{name}")),
    ]
    pipeline.run(calls[:4])
    reply = pipeline.run(calls[4:])[0]
    assert pipeline.roll_back()
    return "\n".join((row[0] or b"").decode() for row in reply.rows)


@pytest.mark.parametrize("state", STATES)
def test_every_hot_statement_finds_its_rows_by_an_index(
    server: PostgresServer, schema: str, open_pipeline: Open, state: str
) -> None:
    fill_with(server, schema, open_pipeline, state)
    pipeline = open_pipeline(is_prepared=False)
    server.sql(f"UPDATE {schema}.lanes SET epoch = 0")
    server.sql(f"DELETE FROM {schema}.commits WHERE lane = 0 AND seq > 0")
    hot, cold, pruning = HotStatements(schema), ColdStatements(schema), statements_of(schema)
    cases = [
        *((statement, "('[]')") for statement in (hot.steps_dispatched, hot.steps_completed, hot.steps_changed)),
        *((statement, "('[]')") for statement in (hot.steps_output, hot.steps_stderr)),
        (hot.tasks_changed, "('[]', 0)"),
        *((statement, "('[]')") for statement in (hot.tasks_new, hot.steps_new, hot.history)),
        (Fence(schema).statement, "(0, 0, 1)"),
        *((statement, "('[]')") for statement in (cold.claim_keys, cold.key_owners, cold.release_keys)),
        *((statement, "('[]', 0)") for statement in (cold.assert_tasks, cold.assert_workflows)),
        (cold.tasks_of_steps, "('[]')"),
        (cold.reserve_ids, "(10, 0)"),
        (cold.end_attention, "('[]')"),
        (cold.audit_end, "(0)"),
        (pruning["remove_whole"], "(0, 'completed', 5, '[]', 100, 100, '[]', 1000000)"),
    ]
    for statement, values in cases:
        text = plans(pipeline, schema, statement, values)
        assert not any(mark in text for mark in WITHOUT_INDEX), f"{statement.name}, {state}:\n{text}"
        assert "Index" in text or text.startswith("Insert on"), f"{statement.name}, {state}:\n{text}"


def test_most_changes_of_steps_are_hot_updates(server: PostgresServer, schema: str, open_pipeline: Open) -> None:
    pipeline = open_pipeline()
    write(pipeline, Chains(schema, 0, 200), 60, 200)
    pipeline.close()  # a closing connection passes its counts on
    server.wait_for(f"SELECT n_tup_upd > 10000 FROM pg_stat_user_tables WHERE relid = '{schema}.steps'::regclass")
    ((updates, hot),) = server.sql(
        f"SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = '{schema}.steps'::regclass"
    )
    assert hot / updates >= 0.7


def test_no_index_of_steps_names_their_state(server: PostgresServer, schema: str) -> None:
    rows = server.sql("SELECT indexdef FROM pg_indexes WHERE schemaname = %s AND tablename = 'steps'", schema)
    assert len(rows) == 2
    assert [text for (text,) in rows if "state" in text] == []


def test_a_group_writes_its_rows_as_they_were_given(server: PostgresServer, schema: str, open_pipeline: Open) -> None:
    chains = Chains(schema, 1, 1)
    pipeline = open_pipeline()
    write(pipeline, chains, 9, 1)
    assert chains.steps == 4
    assert server.sql(f"SELECT state, stored, rank_ms - id, finished_ms FROM {schema}.tasks") == [
        ("completed", False, NOW, NOW)
    ]
    assert (
        server.sql(f"SELECT state, batch_id, worker, output_bytes FROM {schema}.steps")
        == [("completed", None, "worker-1", 25)] * 4
    )
    kinds = [json.loads(facts)[0][0] for (facts,) in server.sql(f"SELECT facts FROM {schema}.history ORDER BY seq")]
    assert kinds == ["submitted", *["dispatched", "completed"] * 4]


def test_a_change_of_a_missing_task_fails_the_whole_group(
    server: PostgresServer, schema: str, open_pipeline: Open
) -> None:
    hot = HotStatements(schema)
    pipeline = open_pipeline()
    row = {"id": 77, "state": "running", "cancelling": False, "stored": False}
    fence = StatementCall(Fence(schema).statement, (0, 0, 1))
    with pytest.raises(StatementFailed, match="rows of tasks are missing: 1") as failed:
        pipeline.run([BEGIN, fence, StatementCall(hot.tasks_changed, (json.dumps([row]), 1)), COMMIT])
    assert failed.value.sqlstate == "22P02"
    assert pipeline.roll_back()
    assert server.sql(f"SELECT max(seq) FROM {schema}.commits WHERE lane = 0") == [(0,)]
