"""Files of another user of the host, for the tests of what a broker and its commands trust."""

import os
from pathlib import Path

import pytest

OTHER_UID = 65534


def give_away(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Make the files those of another user. Only root may give files away: other users change their own id instead, as
    the product's code sees it."""
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, OTHER_UID, OTHER_UID, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER_UID)
