"""`stepwire token`: created, printed once, used at once, revoked without a signal."""

import json

from .a_place import Place, Serving, stop

OK, FAILURE, USAGE, NOT_FOUND, DENIED = 0, 1, 2, 3, 6


def until_tokens_changed(broker: Serving) -> None:
    assert broker.process.stderr is not None
    while json.loads(broker.process.stderr.readline())["event"] != "tokens_changed":
        pass


def test_a_token_allows_its_scopes_until_it_is_revoked(empty: Place) -> None:
    broker = empty.serve("-o", "json")
    try:
        empty.environ["STEPWIRE_URL"] = json.loads(broker.ready)["http"]
        made = empty.stepwire("token", "new", "watcher", "--scope", "read", "--expires", "1h")
        assert (made.code, made.err) == (OK, ""), made
        value = made.out.strip()
        assert empty.stepwire("task", "list", STEPWIRE_TOKEN=value).code == OK
        denied = empty.stepwire("task", "cancel", "1", STEPWIRE_TOKEN=value)
        assert denied.code == DENIED
        assert "lacks the scope `operate`" in denied.err
        assert "stepwire token new --scope operate" in denied.err
        (shown,) = empty.stepwire("token", "list", "--json").json
        assert (shown["name"], shown["scopes"]) == ("watcher", ["read"])
        assert value not in empty.stepwire("token", "list").out
        assert empty.stepwire("token", "revoke", "watcher").code == OK
        until_tokens_changed(broker)
        assert empty.stepwire("task", "list", STEPWIRE_TOKEN=value).code == DENIED
    finally:
        stop(broker.process)


def test_a_wrong_name_or_scope_is_refused(empty: Place) -> None:
    assert "scopes are read, submit, work, operate, admin" in empty.stepwire("token", "new", "--scope", "write").err
    assert empty.stepwire("token", "new", "two words").code == USAGE
    assert empty.stepwire("token", "revoke", "missing").code == NOT_FOUND
    assert empty.stepwire("token", "new", "ci").code == OK
    assert empty.stepwire("token", "new", "ci").code == FAILURE
    assert "holds no tokens" in empty.stepwire("token", "list", STEPWIRE_HTTP__TOKENS_FILE="other").err
