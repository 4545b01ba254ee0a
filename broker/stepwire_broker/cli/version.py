"""`stepwire version`: the versions that a bug report needs."""

import click

from . import output
from .options import Options, StepwireCommand


@click.command(cls=StepwireCommand)
@click.pass_obj
def version(options: Options) -> None:
    """Print the versions of Stepwire and of the libraries that it uses."""
    import platform
    import sqlite3
    from importlib.metadata import version as of_package

    import zmq
    from stepwire_protocol import limits

    versions = {
        "stepwire": of_package("stepwire"),
        "protocol": ", ".join(limits.VERSIONS_SUPPORTED),
        "python": platform.python_version(),
        "pyzmq": zmq.__version__,
        "libzmq": zmq.zmq_version(),
        "sqlite": sqlite3.sqlite_version,
        "msgspec": of_package("msgspec"),
    }
    output.one(options, versions, "\n".join(f"{name:<9} {value}" for name, value in versions.items()))
