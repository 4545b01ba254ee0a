"""A package as pip would install it in a directory: its modules, and the file of its entry points."""

import shutil
import tomllib
from pathlib import Path


def install(package: Path, target: Path) -> None:
    """Install the content of the package's wheel, without a build tool or a network."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    info = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    for module in package.glob("*.py"):
        shutil.copy(module, target)
    lines = [f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"]
    (info / "METADATA").write_text("".join(lines))
    sections = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(sections))
