"""The key file and the file of erasures: what they hold, who may read them, and what happens when one is missing."""

import stat
from pathlib import Path

import pytest
from stepwire_broker import private_files, security_key
from stepwire_broker.core.definitions.settings import SecuritySettings
from stepwire_broker.erasures_file import ErasuresFile
from stepwire_broker.security_key import SecurityKey, SecurityKeyError

UID = "0123456789abcdef" * 2


@pytest.fixture
def settings(tmp_path: Path) -> SecuritySettings:
    return SecuritySettings(
        key_file=str(tmp_path / "state" / "key"), erasures_file=str(tmp_path / "state" / "erasures")
    )


def opened(settings: SecuritySettings) -> ErasuresFile:
    return ErasuresFile(Path(settings.erasures_file), security_key.ensure(settings))


def test_the_first_start_makes_a_private_key_and_later_starts_keep_it(settings: SecuritySettings) -> None:
    first = security_key.ensure(settings)
    assert stat.S_IMODE(Path(settings.key_file).stat().st_mode) == 0o600
    assert security_key.ensure(settings).fingerprint == first.fingerprint
    assert first.for_purpose(b"a") != first.for_purpose(b"b")


def test_a_key_that_others_can_read_is_refused_with_the_remedy(settings: SecuritySettings) -> None:
    security_key.ensure(settings)
    Path(settings.key_file).chmod(0o644)
    with pytest.raises(SecurityKeyError, match="chmod 600"):
        security_key.ensure(settings)


@pytest.mark.parametrize("text", ["", "short", "!" * 43, "A" * 200])
def test_a_file_without_a_key_is_refused(settings: SecuritySettings, text: str) -> None:
    security_key.ensure(settings)
    Path(settings.key_file).write_text(text)
    with pytest.raises(SecurityKeyError, match="holds no key"):
        security_key.ensure(settings)


def test_a_link_in_place_of_the_key_is_refused(settings: SecuritySettings, tmp_path: Path) -> None:
    security_key.ensure(settings)
    Path(settings.key_file).rename(tmp_path / "elsewhere")
    Path(settings.key_file).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SecurityKeyError, match="cannot be read"):
        security_key.ensure(settings)


def test_a_key_missing_beside_erasures_is_an_error_and_no_new_key_is_made(settings: SecuritySettings) -> None:
    opened(settings).add([(UID, 17)])
    Path(settings.key_file).unlink()
    for use in (security_key.ensure, security_key.existing):
        with pytest.raises(SecurityKeyError, match="put the key file back"):
            use(settings)
    assert not Path(settings.key_file).exists()


def test_an_erasure_is_found_again_by_its_key_and_the_file_does_not_name_the_task(settings: SecuritySettings) -> None:
    assert opened(settings).add([(UID, 17), (UID, 18)]) == 1
    text = Path(settings.erasures_file).read_text()
    assert UID not in text
    assert stat.S_IMODE(Path(settings.erasures_file).stat().st_mode) == 0o600
    again = opened(settings)
    assert again.erased_ms(UID) in (17, 18)
    assert again.erased_ms(UID[::-1]) is None
    assert again.add([(UID, 19)]) == 0, "a task is noted once"


def test_the_file_of_another_key_is_refused(settings: SecuritySettings) -> None:
    opened(settings).add([(UID, 17)])
    with pytest.raises(SecurityKeyError, match="another key"):
        ErasuresFile(Path(settings.erasures_file), SecurityKey(b"x" * 32))


def test_a_line_that_a_crash_cut_off_is_skipped_and_the_next_line_is_whole(settings: SecuritySettings) -> None:
    opened(settings).add([(UID, 17)])
    path = Path(settings.erasures_file)
    path.write_text(f"{path.read_text()}1789990000000 0f6c")
    opened(settings).add([("f" * 32, 18)])
    again = opened(settings)
    assert (again.erased_ms(UID), again.erased_ms("f" * 32), len(again)) == (17, 18, 2)


def test_a_line_of_something_else_is_refused_with_its_number(settings: SecuritySettings) -> None:
    opened(settings).add([(UID, 17)])
    path = Path(settings.erasures_file)
    path.write_text(f"{path.read_text()}everything\n")
    with pytest.raises(SecurityKeyError, match="line 3"):
        opened(settings)


def test_a_private_file_is_made_once_and_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert private_files.make(path, "one", SecurityKeyError)
    assert not private_files.make(path, "two", SecurityKeyError)
    private_files.replace(path, "three", SecurityKeyError)
    assert path.read_text() == "three"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    with pytest.raises(SecurityKeyError, match="cannot be written"):
        private_files.replace(tmp_path / "missing" / "file", "x", SecurityKeyError)
