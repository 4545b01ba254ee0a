"""`stepwire new`: creates a project directory with a working handler and its test."""

import re
from pathlib import Path
from typing import Final

import click

from . import output, project_languages
from .confirmation import confirm
from .failure import Exit, Failure, leave, usage
from .options import Options, StepwireCommand
from .project_languages import LANGUAGES

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


@click.command(cls=StepwireCommand)
@click.argument("directory", metavar="NAME", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--lang", type=click.Choice(list(LANGUAGES)), default="python", show_default=True, help="Language of the handler."
)
@click.option(
    "--sdk",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory of the SDK for another language than Python. [in the clone of this installation]",
)
@click.pass_obj
def new(options: Options, directory: Path, lang: str, sdk: Path | None) -> None:
    """Create a directory with a one-handler worker, its test, a workflow and a README. NAME may be a path,
    or `.` for the current directory."""
    directory_name = directory.resolve().name  # of `.` too
    name = directory_name.replace("-", "_")
    if not NAME.fullmatch(name):
        usage(f"{directory_name!r} cannot name a workflow: use lower-case letters, digits, _ and -, a letter first")
    sdk = project_languages.find_sdk(lang, sdk)
    texts = project_languages.files(lang, name, sdk)
    is_taken = directory.exists() and any(directory.iterdir())
    if is_taken and not confirm(options, f"{directory} exists and is not empty: write into it?"):
        leave(Exit.FAILURE)
    try:
        for file, text in texts.items():
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            (directory / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(Exit.FAILURE, f"{error.filename} cannot be written: {error.strerror}") from None
    document = {"directory": str(directory), "files": [str(directory / file) for file in texts]}
    output.one(options, document, f"created {directory}: {', '.join(texts)}")
    change = [] if directory.resolve() == Path.cwd() else [f"cd {directory}"]
    build = project_languages.commands(lang, sdk) if sdk is not None else []
    output.note(options, f"next: {' && '.join((*change, *build, 'stepwire dev'))}")
