"""Every column is declared as a payload or not, and an erasure in either store replaces what is declared."""

from stepwire_broker.store import erasure, needles, tables


def test_every_column_is_declared_as_a_payload_or_not() -> None:
    for table in tables.metadata.sorted_tables:
        payload = set(erasure.PAYLOAD.get(table.name, {}))
        other = set(erasure.NOT_PAYLOAD.get(table.name, ()))
        columns = {column.name for column in table.columns}
        assert payload | other == columns, f"declare the columns of {table.name} in store/erasure.py"
        assert not payload & other


def test_no_column_is_declared_that_does_not_exist() -> None:
    names = {table.name for table in tables.metadata.sorted_tables}
    assert {*erasure.PAYLOAD, *erasure.NOT_PAYLOAD} <= names


def test_a_parked_frame_names_the_steps_that_it_holds() -> None:
    frame = b'@w:1 {"steps":[{"step_id":17,"task_id":3},{"step_id": 1234,"task_id":4}]}'
    assert erasure.names_a_step(frame, {1234})
    assert not erasure.names_a_step(frame, {123})


def test_a_needle_is_a_long_word_of_a_value_and_never_a_name() -> None:
    value = b'{"customer_number_of_us":"42","contact":"jane.doe@example.com","note":"a b, jane.doe-is-the-name"}'
    assert set(needles._words(value)) == {b"jane.doe@example.com", b"jane.doe-is-the-name"}
