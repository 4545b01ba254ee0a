"""Looks for known vulnerabilities of the locked packages, with pip-audit: `python -m tests.packages.audit`.

The exit code is 1 if there is one, and 77 if the database of vulnerabilities cannot be reached: then nothing
was audited, which is not the same as no finding.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests import toolchains

ROOT: Final = Path(__file__).parents[2]
LOCKS: Final = ("broker", "dev")
OK, VULNERABLE, NOT_AUDITED = 0, 1, 77
FOUND: Final = "known vulnerabilit"  # pip-audit's line about findings; "No known vulnerabilities found" without any
SKIPPED: Final = "could not be audited"  # in pip-audit's line about a package
TIMEOUT_S: Final = 300


def audit(program: list[str], lock: Path) -> tuple[int, str]:
    """Audit one lock. Returns the exit code of this command, and the text of the report."""
    try:
        done = subprocess.run(
            [*program, "--requirement", str(lock), "--require-hashes", "--disable-pip", "--progress-spinner", "off"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return NOT_AUDITED, f"not audited: {error}"
    text = done.stdout + done.stderr
    if done.returncode != OK and FOUND in text and "No known" not in text:
        return VULNERABLE, text
    skipped = text.count(SKIPPED)
    if skipped:  # pip-audit exits with 0
        return NOT_AUDITED, f"not audited: the database knows nothing of {skipped} packages, or was not reached"
    if done.returncode == OK:
        return OK, text
    last = text.strip().splitlines()[-1:] or ["pip-audit printed nothing"]
    return NOT_AUDITED, f"not audited: {last[0]}"


def worst(codes: list[int]) -> int:
    return VULNERABLE if VULNERABLE in codes else NOT_AUDITED if NOT_AUDITED in codes else OK


def main() -> int:
    codes = []
    with tempfile.TemporaryDirectory() as scratch:
        lock = ROOT / "tests/requirements/audit.lock"
        tools = toolchains.virtual_environment(Path(scratch) / "tools", "--require-hashes", "-r", str(lock))
        for name in LOCKS:
            code, text = audit([str(tools / "pip-audit")], ROOT / f"tests/requirements/{name}.lock")
            print(f"{name}.lock: {text.strip()}")
            codes.append(code)
    return worst(codes)


if __name__ == "__main__":
    sys.exit(main())
