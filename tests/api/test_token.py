"""The token file: created once, readable by its owner only, and compared in constant time."""

import hashlib
import stat
from pathlib import Path

import pytest
from stepwire_broker.api import token
from stepwire_broker.api.token import Grant, TokenError
from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.last_uses import HOUR_MS, LastUses, read_uses

from tests.foreign_files import give_away


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def private(text: str, name: str = "tokens", mode: int = 0o600) -> str:
    Path(name).write_text(text)
    Path(name).chmod(mode)
    return name


GOOD = "a" * 43


def admitted(tokens: token.Tokens, value: str) -> Grant | None:
    """The grant of a token, without the digest of the token."""
    grant = tokens.admit(value.encode())
    return grant and grant._replace(digest=b"")


def test_the_first_start_creates_a_token_that_only_its_owner_can_read() -> None:
    tokens = token.open_tokens(None)
    made = Path(".stepwire/token")
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(".stepwire").stat().st_mode) == 0o700
    text = made.read_text().strip()
    assert len(text) >= 43
    assert tokens.admit(text.encode())
    assert [path.name for path in Path(".stepwire").iterdir()] == ["token"]


def test_the_next_start_keeps_the_token() -> None:
    token.open_tokens(None)
    first = Path(".stepwire/token").read_text()
    token.open_tokens(None)
    assert Path(".stepwire/token").read_text() == first


def test_two_places_have_two_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token.open_tokens(None)
    first = Path(".stepwire/token").read_text()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    token.open_tokens(None)
    assert Path(".stepwire/token").read_text() != first


def test_only_the_exact_token_is_admitted() -> None:
    tokens = token.open_tokens(private(f"# ours\n{GOOD}  # the console's\n\n{'b' * 50}\n"))
    assert tokens.admit(GOOD.encode())
    assert tokens.admit(b"b" * 50)
    for wrong in (b"", b"a" * 42, b"a" * 44, b"A" * 43, b"# ours", hashlib.sha256(GOOD.encode()).hexdigest().encode()):
        assert not tokens.admit(wrong)


def test_a_file_may_hold_digests_instead_of_tokens() -> None:
    tokens = token.open_tokens(private(f"sha256:{hashlib.sha256(GOOD.encode()).hexdigest()}\n"))
    assert tokens.admit(GOOD.encode())
    assert not tokens.admit(f"sha256:{hashlib.sha256(GOOD.encode()).hexdigest()}".encode())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no token"),
        ("# nothing\n", "holds no token"),
        ("short\n", "line 1: a token has at least 43 characters"),
        (f"{GOOD}\nsha256:12\n", "line 2: `sha256:` must be followed by 64 hex digits"),
        ("sha256:" + "x" * 64, "64 hex digits"),
    ],
)
def test_a_file_without_good_tokens_is_refused(text: str, says: str) -> None:
    with pytest.raises(TokenError, match="tokens") as refused:
        token.open_tokens(private(text))
    assert says in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_can_read_or_write_is_refused(mode: int) -> None:
    with pytest.raises(TokenError, match="chmod 600 tokens"):
        token.open_tokens(private(GOOD, mode=mode))


def test_a_state_directory_that_others_can_enter_is_refused() -> None:
    Path(".stepwire").mkdir(mode=0o755)
    Path(".stepwire").chmod(0o755)
    with pytest.raises(TokenError, match=r"chmod 700 \.stepwire"):
        token.open_tokens(None)


def test_a_token_file_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(private(GOOD))
    assert admitted(token.open_tokens(str(file)), GOOD)
    give_away(monkeypatch, file)
    for read in (token.open_tokens, token.first_token):
        with pytest.raises(TokenError, match="tokens belongs to the user"):
            read(file)  # type: ignore[operator]


def test_a_state_directory_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".stepwire").mkdir(mode=0o700)
    give_away(monkeypatch, Path(".stepwire"))
    with pytest.raises(TokenError, match=r"\.stepwire belongs to the user .*: run this as that user"):
        token.make_state_dir()


def test_an_unreadable_token_file_is_refused_with_the_cause() -> None:
    with pytest.raises(TokenError, match="nowhere cannot be read: No such file"):
        token.open_tokens("nowhere")
    Path(".stepwire").write_text("")
    with pytest.raises(TokenError, match="is a file"):
        token.open_tokens(None)


def test_no_error_message_contains_a_token() -> None:
    with pytest.raises(TokenError) as refused:
        token.open_tokens(private("secret-but-short"))
    assert "secret-but-short" not in str(refused.value)
    assert GOOD not in repr(token.open_tokens(private(GOOD)))


# -- scopes -----------------------------------------------------------------------------------------------------------

DIGEST = "sha256:" + hashlib.sha256(b"c" * 50).hexdigest()
READ, ADMIN = Scope.READ, Scope.ADMIN


def test_a_line_gives_a_token_its_scopes_and_without_scopes_full_access() -> None:
    tokens = token.open_tokens(
        private(f"{GOOD}\n{DIGEST} name=ci scopes=read,submit expires=2999-01-01T00:00:00Z # the build\n")
    )
    assert admitted(tokens, GOOD) == Grant("line 1", frozenset({ADMIN}), is_named=False)
    ci = tokens.admit(b"c" * 50)
    assert ci is not None
    assert (ci.name, sorted(ci.scopes)) == ("ci", ["read", "submit"])
    assert [scope for scope in Scope if ci.allows(scope)] == [READ, Scope.SUBMIT, Scope.METRICS]
    assert all(Grant("x", frozenset({ADMIN})).allows(scope) for scope in Scope)


def test_a_token_expires() -> None:
    tokens = token.open_tokens(private(f"{GOOD}\n{DIGEST} expires=2020-01-01T00:00:00Z\n"))
    assert tokens.admit(b"c" * 50) is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("scopes=write", "scopes are read, inspect, submit, work, operate, metrics, admin"),
        ("scopes=", "scopes are"),
        ("scope=read", "'scope' is unknown"),
        ("scopes=read scopes=admin", "occurs twice"),
        ("expires=tomorrow", "it must have the form"),
        ("expires=2027-01-01T00:00:00", "it must have the form"),
    ],
)
def test_a_line_with_an_unknown_member_is_refused(words: str, says: str) -> None:
    with pytest.raises(TokenError, match="tokens, line 1: ") as refused:
        token.open_tokens(private(f"{DIGEST} {words}\n"))
    assert says in str(refused.value)


def test_created_and_revoked_tokens_apply_without_a_reload() -> None:
    tokens = token.open_tokens(None)
    file = token.tokens_file_of(None)
    value = token.add_token(file, Grant("ci", frozenset({READ})))
    assert value not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert admitted(tokens, value) == Grant("ci", frozenset({READ}))
    with pytest.raises(TokenError, match="already"):
        token.add_token(file, Grant("ci", frozenset({READ})))
    file.write_text(f"# ours\n{file.read_text()}")
    token.revoke_token(file, "ci")
    assert (tokens.refresh(), tokens.admit(value.encode())) == (True, None)
    assert tokens.refresh() is False
    assert file.read_text() == "# ours\n"
    with pytest.raises(TokenError, match="no token 'ci'"):
        token.revoke_token(file, "ci")


def test_a_broken_file_that_is_found_with_an_unknown_token_is_reported_by_the_next_look() -> None:
    tokens = token.open_tokens(private(GOOD))
    private("short")
    assert tokens.admit(b"u" * 43) is None
    assert tokens.admit(GOOD.encode())
    with pytest.raises(TokenError):
        tokens.refresh()
    assert tokens.refresh() is False


def test_a_reload_of_a_broken_file_keeps_the_previous_tokens() -> None:
    tokens = token.open_tokens(private(GOOD))
    private("short")
    with pytest.raises(TokenError):
        tokens.reload()
    assert tokens.admit(GOOD.encode())


# -- namespaces, roles, and the last use ------------------------------------------------------------------------------


def test_a_line_limits_a_token_to_its_namespaces_and_gives_its_holder_roles() -> None:
    members = "name=ci scopes=read namespaces=shop,shop::** roles=finance expires=never"
    lines = token.read_lines(Path(private(f"{GOOD}\n{DIGEST} {members}\n")))
    ci = lines[1].grant
    assert [ci.allows_namespace(each) for each in ("shop", "shop::eu::west", "shopping", "billing")] == [
        True,
        True,
        False,
        False,
    ]
    assert (ci.roles, ci.expires_ms, ci.of_workers.namespaces) == (("finance",), None, ("shop", "shop::**"))
    assert lines[0].grant.is_for_all_namespaces


def test_an_empty_list_of_namespaces_is_refused_because_it_would_read_as_no_limit() -> None:
    with pytest.raises(token.TokenError, match=r"it must have the form namespaces=shop,shop::\*"):
        token.read_lines(Path(private(f"{GOOD} namespaces=,\n")))


def test_the_last_use_of_a_token_is_kept_to_the_hour_and_over_restarts(tmp_path: Path) -> None:
    file = tmp_path / "tokens.uses"
    uses = LastUses(file)
    uses.note("01" * 6, 5 * HOUR_MS + 17)
    uses.write()
    later = LastUses(file)
    later.note("02" * 6, 6 * HOUR_MS)
    later.write()
    assert read_uses(file) == {"01" * 6: 5 * HOUR_MS, "02" * 6: 6 * HOUR_MS}
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_file_of_uses_is_written_only_for_a_new_use(tmp_path: Path) -> None:
    file = tmp_path / "tokens.uses"
    uses = LastUses(file)
    uses.note("01" * 6, HOUR_MS)
    uses.write()
    file.unlink()
    uses.note("01" * 6, HOUR_MS + 100)
    uses.write()
    assert not file.exists()
