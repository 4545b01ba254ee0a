"""Reads the value of a secret from a file in STEPWIRE_SECRETS_DIR: `stripe/live` is the file `stripe/live` in there.

Symbolic links may lead to files inside the directory, as Kubernetes makes them, and nowhere else.
"""

import os
import stat
from typing import Final

from .errors import StepwireError

VALUE_BYTES_MAX: Final = 64 * 1024
_ROOT: Final = 0


class SecretUnavailable(StepwireError):
    """The secret has no value that may be used. The message never holds the value.

    `category` is `unavailable` if the service that holds the secrets has failed.
    """

    def __init__(self, message: str, *, is_service_at_fault: bool = False) -> None:
        super().__init__(message)
        self.category = "unavailable" if is_service_at_fault else None


def read_secret(directory: str, name: str) -> str:
    """The value of the secret with this name, which has the form of a reference. Raises SecretUnavailable.

    One line end at the end of the file is not part of the value.
    """
    root = os.path.realpath(directory)
    _check_directory(directory, root)
    path = os.path.realpath(os.path.join(root, name))
    if not path.startswith(root.rstrip("/") + "/"):
        raise SecretUnavailable(f"secret {name!r}: its file is a link that leads out of {directory}")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise SecretUnavailable(f"secret {name!r}: there is no such file in {directory}") from None
    except OSError as error:
        raise SecretUnavailable(f"secret {name!r}: its file in {directory} cannot be read: {error.strerror}") from None
    try:
        _check_file(name, directory, os.fstat(descriptor))
        content = b""
        while len(content) <= VALUE_BYTES_MAX and (part := os.read(descriptor, VALUE_BYTES_MAX + 1 - len(content))):
            content += part
    except OSError as error:
        raise SecretUnavailable(f"secret {name!r}: its file in {directory} cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    return value_of(name, content)


def value_of(name: str, content: bytes) -> str:
    """The value that the content of a file means. Raises SecretUnavailable."""
    if len(content) > VALUE_BYTES_MAX:
        raise SecretUnavailable(f"secret {name!r}: its file has more than {VALUE_BYTES_MAX} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise SecretUnavailable(f"secret {name!r}: its file is no UTF-8 text; store binary data as Base64") from None
    text = text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
    if not text:
        raise SecretUnavailable(f"secret {name!r}: its file is empty")
    return text


def _check_directory(directory: str, root: str) -> None:
    try:
        status = os.stat(root)
    except OSError as error:
        raise SecretUnavailable(f"the directory of secrets {directory!r} cannot be read: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise SecretUnavailable(f"the directory of secrets {directory!r} is no directory")
    if status.st_uid not in (os.geteuid(), _ROOT):
        raise SecretUnavailable(f"the directory of secrets {directory!r} belongs to another user: chown it")
    is_protected = not status.st_mode & 0o022 or status.st_mode & stat.S_ISVTX  # sticky: only owners replace files
    if not is_protected:
        raise SecretUnavailable(f"other users may write the directory of secrets {directory!r}: chmod 700 {directory}")


def _check_file(name: str, directory: str, status: os.stat_result) -> None:
    where = f"secret {name!r}: its file in {directory}"
    if not stat.S_ISREG(status.st_mode):
        raise SecretUnavailable(f"{where} is no regular file")
    if status.st_uid not in (os.geteuid(), _ROOT):
        raise SecretUnavailable(f"{where} belongs to another user: chown it")
    if status.st_mode & 0o027:
        raise SecretUnavailable(
            f"{where} has the mode {stat.S_IMODE(status.st_mode):04o}, so other users may use it: chmod 600, or 400"
        )
