"""`stepwire audit`: who changed what, and the proof that the record of it was not changed.

`list` and `head` ask the broker. `export` and `verify` read the database itself, whether a broker runs or not.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from stepwire_broker.core.phrases import counted

from . import output
from .connection import PAGE_MAX, broker_client
from .db_access import stored_state
from .failure import Exit, Failure, leave
from .options import Options, StepwireGroup

if TYPE_CHECKING:
    from stepwire_broker.store.audit_chain import AuditHead

FINDINGS_MAX: Final = 100
COLUMNS: Final = [
    output.Column("n", "n"),
    output.Column("at", "at"),
    output.Column("principal", "principal"),
    output.Column("via", "via"),
    output.Column("action", "action"),
    output.Column("target", "target"),
    output.Column("outcome", "outcome"),
    output.Column("reason", "reason"),
    output.Column("lane", "lane", is_extra=True),
    output.Column("request", "request_id", is_extra=True),
    output.Column("hash", "hash", is_extra=True),
]


@click.group(cls=StepwireGroup)
def audit() -> None:
    """List, export and verify the record of operators' actions."""


@audit.command(name="list")
@click.option("--principal", metavar="NAME", help="Only rows of this principal: a token's name.")
@click.option("--action", metavar="ACTION", help="Only rows of this action, for example retry_task.")
@click.option("--target", metavar="TARGET", help='Only rows about this target, for example "task 7".')
@click.option("--outcome", metavar="OUTCOME", help="Only rows with this outcome: done, unchanged, refused.")
@click.option("--since", metavar="TIME", help="Only rows of this time or later: 2026-11-18T10:00:00Z.")
@click.option("--until", metavar="TIME", help="Only rows from before this time.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), default=50, help="Maximum number of rows to list.")
@output.columns_option
@click.pass_obj
def list_rows(options: Options, /, limit: int, **filters: str | None) -> None:
    """List the rows of the audit, the newest first."""
    rows: list[dict[str, Any]] = []
    cursor: str | None = None
    with broker_client(options) as client:
        while len(rows) < limit:
            page = client.audit(**filters, limit=min(PAGE_MAX, limit - len(rows)), cursor=cursor)
            rows += page["rows"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
    output.several(options, rows, COLUMNS, "no row matches")


@audit.command()
@click.pass_obj
def head(options: Options) -> None:
    """Print the last row of each chain, as JSON. Store it elsewhere: `verify --head` compares it with the database."""
    with broker_client(options) as client:
        click.echo(msgspec.json.encode(client.audit_head()).decode())


@audit.command()
@click.pass_obj
def export(options: Options) -> None:
    """Print every row as a line of JSON, the oldest first, from the database."""
    from stepwire_broker.store import stored_audit

    encode = msgspec.json.Encoder().encode
    with stored_state(options) as state:
        for row in stored_audit.rows(state):
            sys.stdout.buffer.write(encode(row._asdict()) + b"\n")
    sys.stdout.flush()


@audit.command()
@click.option(
    "--head",
    "head_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also compare with the ends of the chains in FILE, which `stepwire audit head` printed earlier.",
)
@click.pass_obj
def verify(options: Options, head_file: Path | None) -> None:
    """Check that no row of the audit was changed, removed, inserted or renumbered. Reads the database.

    The exit code is 1 if anything is wrong. Only a stored head detects that the end of a chain was replaced or that the
    database is an older copy.
    """
    from itertools import islice

    from stepwire_broker.store import stored_audit

    heads = [] if head_file is None else _read_heads(head_file)
    with stored_state(options) as state:
        findings = list(islice(stored_audit.verify(state, heads), FINDINGS_MAX))
        chains = stored_audit.chains(state)
    rows = sum(chain.n - chain.cut_n for chain in chains)
    compared = f", and {counted(len(heads), 'stored head')} compared" if heads else ""
    good = f"{counted(rows, 'row')} of the audit verified{compared}: no errors"
    output.one(options, {"rows": rows, "heads": len(heads), "findings": findings}, "\n".join(findings) or good)
    if findings:
        leave(Exit.FAILURE)


def _read_heads(file: Path) -> "list[AuditHead]":
    from stepwire_broker.store.audit_chain import AuditHead

    try:
        document = msgspec.json.decode(file.read_bytes(), type=_HeadsFile)
    except OSError as error:
        raise Failure(Exit.NOT_FOUND, f"{file} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise Failure(Exit.USAGE, f"{file} holds no heads: {error}", "write one: stepwire audit head > FILE") from None
    return [AuditHead(head.lane, head.n, head.hash) for head in document.heads]


class _Head(msgspec.Struct):
    lane: int
    n: int
    hash: str


class _HeadsFile(msgspec.Struct):
    heads: list[_Head]
