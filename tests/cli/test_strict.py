"""`security.strict`: the refusals at the start, and a broker that it accepts."""

import json
import stat
from datetime import UTC, datetime, timedelta

import pytest

from .a_place import Place, stop

OK, FAILURE, USAGE = range(3)
IN_A_MONTH = (datetime.now(UTC) + timedelta(days=30)).isoformat(timespec="seconds")
DIGEST = f"sha256:{'ab' * 32}"
ACCEPTED = {"STEPWIRE_SECURITY__STRICT": "true", "STEPWIRE_HTTP__LISTEN": ""}


@pytest.fixture
def strict(empty: Place) -> Place:
    """A place whose settings `security.strict` accepts: ipc, and HTTP only on the Unix socket."""
    empty.environ.update(ACCEPTED)
    return empty


REFUSED = {
    "bus on the loopback": (
        {"STEPWIRE_BUS__STEPS": "tcp://127.0.0.1:7411", "STEPWIRE_BUS__RESULTS": "tcp://127.0.0.1:7412"},
        "",
        "bus.steps is 'tcp://127.0.0.1:7411': security.strict refuses tcp without keys; create keys",
    ),
    "HTTP on the loopback": (
        {"STEPWIRE_HTTP__LISTEN": "127.0.0.1:0"},
        "",
        "http.listen is '127.0.0.1:0': security.strict refuses tcp without TLS, also on the loopback; set",
    ),
    "programs": (
        {"STEPWIRE_EXECUTORS__EXEC__COMMANDS": '{"file.count": ["true"]}'},
        "",
        "executors.exec.commands has programs (file.count), which would run as the broker's user: security.strict",
    ),
    "a token that never expires": (
        {"STEPWIRE_HTTP__TOKENS_FILE": "tokens"},
        f"{DIGEST} name=ci scopes=read\n",
        "tokens: the token 'ci' never expires, which security.strict refuses: add expires=",
    ),
    "a token with the scope admin": (
        {"STEPWIRE_HTTP__TOKENS_FILE": "tokens"},
        f"{DIGEST} name=ci scopes=admin expires={IN_A_MONTH}\n",
        "tokens: the token 'ci' has the scope admin, which security.strict allows only to the broker's user",
    ),
}


@pytest.mark.parametrize(("environ", "tokens", "sentence"), REFUSED.values(), ids=REFUSED)
def test_strict_refuses_what_the_defaults_accept(
    strict: Place, environ: dict[str, str], tokens: str, sentence: str
) -> None:
    (strict.directory / "tokens").write_text(tokens)
    (strict.directory / "tokens").chmod(0o600)
    started = strict.stepwire("serve", **environ)
    assert started.code in (FAILURE, USAGE), started
    assert sentence in started.err
    assert len(started.err.strip().splitlines()) == 1, "one sentence"
    checked = strict.stepwire("config", "validate", **environ)
    assert (checked.code, sentence in checked.err) == (USAGE, True), checked
    red = list(map(json.loads, strict.stepwire("doctor", "-o", "jsonl", **environ).out.splitlines()))
    assert any(sentence in one["text"] for one in red if one["state"] == "red"), red


def test_strict_refuses_the_token_of_an_earlier_start(strict: Place) -> None:
    stop(strict.serve("--set", "security.strict=false").process)
    started = strict.stepwire("serve")
    assert started.code == USAGE
    assert ".stepwire/token holds a token with every scope that never expires" in started.err
    assert "remove the file" in started.err


def test_a_strict_broker_makes_no_token_and_serves_its_own_user_on_the_unix_socket(strict: Place) -> None:
    serving = strict.serve("-o", "json")
    try:
        facts = json.loads(serving.ready)
        assert (facts["insecure"], facts["token_file"], facts["http"][:5]) == ([], None, "unix:")
        assert not (strict.directory / ".stepwire/token").exists()
        assert stat.S_IMODE((strict.directory / ".stepwire/http.sock").stat().st_mode) == 0o600
        assert strict.stepwire("worker", "list").code == OK
        examined = strict.stepwire("doctor")
        assert examined.code == OK, examined
        assert "token" not in examined.out
        refused = strict.stepwire("token", "new", "ci", "--scope", "read", "--expires", "never")
        assert (refused.code, "the token 'ci' never expires" in refused.err) == (USAGE, True)
        made = strict.stepwire("token", "new", "ci", "--scope", "read", "--expires", "30d")
        assert made.code == OK, made
    finally:
        stop(serving.process)


def test_a_token_without_expiry_written_while_a_strict_broker_runs_is_not_accepted(strict: Place) -> None:
    serving = strict.serve("-o", "json")
    try:
        made = strict.stepwire(
            "token", "new", "late", "--scope", "read", "--expires", "never", STEPWIRE_SECURITY__STRICT="false"
        )
        assert made.code == OK
        token = strict.stepwire("token", "new", "later", "--scope", "read", "--expires", "1d").out.strip()
        refused = strict.stepwire("worker", "list", STEPWIRE_TOKEN=token)
        assert refused.code != OK, "one bad line refuses the file, as at the start"
        assert strict.stepwire("token", "revoke", "late").code == OK
        assert strict.stepwire("worker", "list", STEPWIRE_TOKEN=token).code == OK
    finally:
        stop(serving.process)
