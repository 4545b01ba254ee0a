"""The fixture that the tests of the pages share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .reader import Reader


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    tmp_path.chmod(0o700)
    reader = Reader(tmp_path)
    yield reader
    reader.close()
