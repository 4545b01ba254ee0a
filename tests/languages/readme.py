"""Follows the README of an SDK literally, in an empty directory, with a stopwatch.

    python -m tests.languages.readme go

Every block of the page runs as tests/docs/README.md describes: commands, files, terminals, a real broker. The variable
STEPWIRE is the path of this clone, and `stepwire` is on the PATH, as the pages say. Package managers use what they have
already fetched on this machine, unless `--cold` is given. The whole page must take at most BOUND_S.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.docs.pages import blocks
from tests.docs.reader import Reader

from .sdks import ROOT, SDKS, Sdk

BOUND_S: Final = 300.0
FIRST_TASK: Final = "stepwire task submit"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("language", choices=sorted(SDKS))
    parser.add_argument(
        "--cold", action="store_true", help="fetch every package again; build the SDK of Java again afterwards"
    )
    options = parser.parse_args()
    sdk = SDKS[options.language]
    with tempfile.TemporaryDirectory(prefix="sw-readme-") as name:
        directory = Path(name, "shop")
        directory.mkdir(mode=0o700)
        Path(name, "home").mkdir()
        took_s = follow(sdk, directory, environment(sdk, Path(name), is_cold=options.cold))
    sys.exit(took_s > BOUND_S)


def follow(sdk: Sdk, directory: Path, environ: Mapping[str, str]) -> float:
    """Run the page. Return the seconds that it took; raise for the first block that does not do what the page says."""
    reader = Reader(directory, environ, BOUND_S)
    began = time.monotonic()
    first_s: float | None = None
    count = 0
    try:
        for block in blocks((sdk.folder / "README.md").read_text()):
            block_began = time.monotonic()
            try:
                reader.do(block)
            except Exception as error:
                raise AssertionError(f"handlers_sdk/{sdk.name}/README.md, line {block.line}: {error}") from error
            if block.word in ("not run", "file") or block.language not in ("sh", "console", "python"):
                continue
            count += 1
            now = time.monotonic()
            print(f"{now - block_began:6.1f} s  line {block.line}: {block.text.partition(chr(10))[0][:90]}", flush=True)
            if first_s is None and FIRST_TASK in block.text:
                first_s = now - began
    finally:
        reader.close()
    took_s = time.monotonic() - began
    assert first_s is not None, f"handlers_sdk/{sdk.name}/README.md never runs `{FIRST_TASK}`"
    print(f"{sdk.name}: {count} blocks in {took_s:.0f} s, the first task completed after {first_s:.0f} s")
    return took_s


def environment(sdk: Sdk, scratch: Path, *, is_cold: bool) -> dict[str, str]:
    """The environment of the reader, who has a home of their own, with the package managers' settings of this one."""
    home = Path.home()
    cache = scratch / "cache"
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("STEPWIRE_") and name not in ("PATH", "HOME", "VIRTUAL_ENV", "PYTHONPATH")
    }
    mine = {
        "STEPWIRE": str(ROOT),
        "HOME": str(scratch / "home"),
        "PIP_CONFIG_FILE": str(home / ".config/pip/pip.conf"),
        "npm_config_userconfig": str(home / ".npmrc"),
        "GOENV": str(home / ".config/go/env"),
        "CARGO_HOME": str(home / ".cargo"),
        "RUSTUP_HOME": str(home / ".rustup"),
    } | {name: inherited[name] for name in ("CARGO_HOME", "RUSTUP_HOME", "PIP_CONFIG_FILE") if name in inherited}
    if is_cold:
        mine |= _cold(cache, Path(mine["CARGO_HOME"]))
    else:
        mine |= {
            "PIP_CACHE_DIR": str(home / ".cache/pip"),
            "npm_config_cache": str(home / ".npm"),
            "MAVEN_OPTS": f"-Dmaven.repo.local={home}/.m2/repository",
        }
        if sdk.name == "go":
            names = ("GOMODCACHE", "GOCACHE")
            values = subprocess.run(["go", "env", *names], check=True, capture_output=True, text=True).stdout.split(
                "\n"
            )
            mine |= dict(zip(names, values, strict=False))
    if sdk.transport == "tcp":  # the reader's machine may be busy on the usual ports, which are this SDK's defaults
        mine |= {"STEPWIRE_STEPS": "tcp://127.0.0.1:7411", "STEPWIRE_RESULTS": "tcp://127.0.0.1:7412"}
    return inherited | mine


def _cold(cache: Path, cargo_home: Path) -> dict[str, str]:
    """Empty caches. Cargo has its settings in the folder of its cache, so they are linked."""
    cargo = cache / "cargo"
    cargo.mkdir(parents=True)
    for name in ("config.toml", "config"):
        if (cargo_home / name).exists():
            (cargo / name).symlink_to(cargo_home / name)
    return {
        "PIP_CACHE_DIR": str(cache / "pip"),
        "npm_config_cache": str(cache / "npm"),
        "MAVEN_OPTS": f"-Dmaven.repo.local={cache}/maven",
        "CARGO_HOME": str(cargo),
        "GOMODCACHE": str(cache / "go"),
        "GOCACHE": str(cache / "go-build"),
        "GOFLAGS": f"{os.environ.get('GOFLAGS', '')} -modcacherw".strip(),  # so that it can be removed
    }


if __name__ == "__main__":
    main()
