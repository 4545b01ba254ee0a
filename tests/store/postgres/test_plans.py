"""The product's own questions are answered from an index, on an empty, a young and a large table."""

import pytest
from stepwire_broker.store.postgres.schema import create_tables

from tests.postgres.plans import QUESTIONS, fill, plans, reads_everything
from tests.postgres.server import PostgresServer

ROWS = {"empty": 0, "young": 200, "large": 50_000}


@pytest.fixture(scope="module", params=ROWS)
def filled(request: pytest.FixtureRequest, server: PostgresServer) -> str:
    """A schema with this number of tasks. No ANALYZE has seen the rows of a young table."""
    schema = f"plans_{request.param}"
    with server.connect() as connection:
        create_tables(connection, schema, lanes=2, first=0)
    server.sql(
        f"INSERT INTO {schema}.workflows (id, namespace, name, version, digest, document, created_ms, active) "
        "VALUES (1, 'd', 'order', '1', 'd', '{}', 0, true)"
    )
    fill(server, schema, ROWS[request.param], is_analysed=request.param == "large")
    return schema


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_reads_no_whole_table(server: PostgresServer, filled: str, question: str) -> None:
    found = plans(server, filled, question)
    assert found
    assert [plan for plan in found if reads_everything(plan)] == []
