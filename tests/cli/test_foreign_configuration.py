"""A configuration that another user has put in the working directory decides nothing, and no secret leaves by it."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stepwire.client import Client
from stepwire.errors import ConfigurationError
from stepwire_broker.configuration import loader
from stepwire_broker.configuration.loader import SettingsError

from tests.foreign_files import OTHER_UID, give_away

from .a_place import Ended, Place, place

OK, USAGE = 0, 2
SECRET = "s" * 43


@contextmanager
def a_listening_stranger() -> Iterator[tuple[str, list[bytes]]]:
    """A server of another user on a port of this machine: its address, and the first bytes of each connection."""
    received: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                received.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", received
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@pytest.fixture
def anywhere(tmp_path: Path) -> Place:
    """A place whose commands have no address from the environment."""
    tmp_path.chmod(0o700)
    here = place(tmp_path)
    del here.environ["STEPWIRE_HTTP__LISTEN"]
    return here


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_configuration_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "stepwire.yaml", "log_level: debug")
    assert loader.load(None, {}, {}).settings.log_level == "debug"
    give_away(monkeypatch, file)
    with pytest.raises(SettingsError, match=r"^stepwire.yaml belongs to the user .*must belong to you or to root") as e:
        loader.load(None, {}, {})
    assert "--config FILE" in e.value.hint
    with pytest.raises(SettingsError, match="belongs to the user"):
        loader.load(str(file), {}, {})  # also if it is named


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_a_link_of_another_user_to_a_file_of_this_user_is_no_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    link = tmp_path / "stepwire.yaml"
    link.symlink_to(write(tmp_path / "mine.yaml", "log_level: debug"))
    assert loader.load(None, {}, {}).settings.log_level == "debug"
    os.chown(link, OTHER_UID, OTHER_UID, follow_symlinks=False)
    with pytest.raises(SettingsError, match="belongs to the user"):
        loader.load(None, {}, {})


@pytest.mark.parametrize("named", ["/outside", "../outside", "inside_link"])
def test_a_configuration_that_was_only_found_names_no_token_file_elsewhere(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    write(tmp_path / "outside", SECRET)
    (here / "inside_link").symlink_to(tmp_path / "outside")
    named = named.replace("/outside", str(tmp_path / "outside")) if named[0] == "/" else named
    write(here / "stepwire.yaml", f"http: {{tokens_file: {named}}}")
    with pytest.raises(SettingsError, match=r"http.tokens_file in stepwire.yaml is .*, outside of this directory") as e:
        loader.load(None, {}, {})
    assert "--config stepwire.yaml" in e.value.hint
    assert loader.load("stepwire.yaml", {}, {}).settings.http.tokens_file == named
    assert loader.load(None, {}, {"STEPWIRE_HTTP__TOKENS_FILE": named}).settings.http.tokens_file == named


def test_a_token_file_inside_the_directory_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "stepwire.yaml", "http: {tokens_file: secrets/tokens}")
    assert loader.load(None, {}, {}).settings.http.tokens_file == "secrets/tokens"


@pytest.mark.parametrize("variable", ["STEPWIRE_TOKEN", "STEPWIRE_TOKEN_FILE"])
def test_a_token_from_the_environment_is_not_sent_to_an_address_that_was_only_found(
    variable: str, anywhere: Place
) -> None:
    token = str(write(anywhere.directory / "token", SECRET)) if variable.endswith("FILE") else SECRET
    with a_listening_stranger() as (address, received):
        write(anywhere.directory / "stepwire.yaml", f"http: {{listen: '{address}'}}")

        def list_tasks(*words: str, **environ: str) -> Ended:
            return anywhere.stepwire(*words, "task", "list", **{variable: token}, **environ)

        found = list_tasks()
        assert found.code == USAGE
        assert f"the token from the environment is not sent to http://{address}" in found.err
        assert "only found in stepwire.yaml in the working directory" in found.err
        assert f"STEPWIRE_URL=http://{address}" in found.err
        assert received == []
        for named in (("--url", f"http://{address}"), ("--config", "stepwire.yaml")):
            list_tasks(*named)
            assert SECRET.encode() in received.pop()


def test_a_secret_is_not_sent_as_a_token_by_a_link_in_the_state_directory(anywhere: Place) -> None:
    secret = write(anywhere.directory / "secret", SECRET)
    with a_listening_stranger() as (address, received):
        write(anywhere.directory / ".stepwire/url", f"http://{address}")
        (anywhere.directory / ".stepwire/token").symlink_to(secret)
        done = anywhere.stepwire("task", "list")
        assert (done.code, "cannot be read" in done.err) == (USAGE, True), done
        assert received == []


def test_a_word_that_is_too_short_for_a_token_is_not_sent(anywhere: Place) -> None:
    password = write(anywhere.directory / "password", "hunter2")
    with a_listening_stranger() as (address, received):
        done = anywhere.stepwire("--url", f"http://{address}", "--token-file", str(password), "task", "list")
        assert (done.code, f"{password} is no token file" in done.err) == (USAGE, True), done
        assert "hunter2" not in done.err
        assert received == []


def test_an_address_that_another_user_wrote_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("STEPWIRE_URL", "STEPWIRE_TOKEN", "STEPWIRE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    url = write(tmp_path / ".stepwire/url", "http://127.0.0.1:1")
    Client()
    url.parent.chmod(0o777)
    with pytest.raises(ConfigurationError, match=r"\.stepwire/url could have been written by another user"):
        Client()
    url.parent.chmod(0o700)
    give_away(monkeypatch, url)
    with pytest.raises(ConfigurationError, match=r"\.stepwire/url could have been written by another user"):
        Client()


def test_a_token_is_not_sent_over_plain_http_beyond_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPWIRE_ALLOW_INSECURE", raising=False)
    for url in ("http://broker.example:7410", "http://192.0.2.7:7410", "http://[2001:db8::1]:7410"):
        with pytest.raises(ConfigurationError, match="plain HTTP beyond this machine shows it to the network"):
            Client(url, token=SECRET)
        Client(url, token=SECRET, allow_insecure=True)
    for url in (
        "http://127.0.0.1:1",
        "http://127.8.8.8:1",
        "http://[::1]:1",
        "http://localhost:1",
        "https://b.example",
    ):
        Client(url, token=SECRET)
    monkeypatch.setenv("STEPWIRE_ALLOW_INSECURE", "true")
    Client("http://broker.example:7410", token=SECRET)
    monkeypatch.setenv("STEPWIRE_ALLOW_INSECURE", "maybe")
    with pytest.raises(ConfigurationError, match="STEPWIRE_ALLOW_INSECURE is 'maybe'"):
        Client("http://broker.example:7410", token=SECRET)


def test_a_token_from_the_environment_goes_to_no_other_machine_that_was_only_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPWIRE_URL", raising=False)
    monkeypatch.setenv("STEPWIRE_TOKEN", SECRET)
    url = write(tmp_path / ".stepwire/url", "https://stranger.example")
    with pytest.raises(ConfigurationError, match=r"only found in \.stepwire/url"):
        Client()
    url.write_text("http://127.0.0.1:1")
    Client()
