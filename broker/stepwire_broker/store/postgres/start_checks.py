"""The checks of a server at the start, each with a sentence that names the setting and the remedy."""

from collections.abc import Callable
from typing import Final, NamedTuple

from stepwire_broker.store.errors import StoreRefused

from .failures import ConnectionLost, StatementFailed
from .pipeline import BEGIN, COMMIT, Pipeline, Statement, StatementCall

VERSION_MIN: Final = 130_000


class ServerFacts(NamedTuple):
    """The server and its settings, as the user of the URL sees them."""

    version: int
    version_text: str
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    standbys: str  # synchronous_standby_names
    is_standby: bool
    encoding: str
    is_pooled: bool
    schema_exists: bool
    may_create: bool  # in the schema, or the schema itself
    may_use: bool  # the schema


class Check(NamedTuple):
    is_refused: Callable[[ServerFacts], bool]
    sentence: str
    is_waivable: bool = True  # by database.allow_unsafe


CHECKS: Final = (
    Check(
        lambda facts: facts.version < VERSION_MIN,
        "the server is PostgreSQL {version_text}: the store needs PostgreSQL 13 or newer",
    ),
    Check(lambda facts: not facts.fsync, "the server has fsync = off and can lose every commit: set fsync = on"),
    Check(
        lambda facts: not facts.full_page_writes,
        "the server has full_page_writes = off and can be damaged by a crash: set full_page_writes = on",
    ),
    Check(
        lambda facts: facts.synchronous_commit == "off",
        "the server has synchronous_commit = off and can lose acknowledged commits: set synchronous_commit = on",
    ),
    Check(
        lambda facts: facts.synchronous_commit == "local" and facts.standbys != "",
        "the server has synchronous standbys and synchronous_commit = local, which does not wait for them: set "
        "synchronous_commit = on",
    ),
    Check(
        lambda facts: facts.encoding != "UTF8",
        "the database has the encoding {encoding}: create it with `createdb --encoding UTF8 --template template0`",
    ),
    Check(
        lambda facts: facts.is_standby,
        "the server is a standby, which cannot be written: name the primary, or several hosts and "
        "target_session_attrs=read-write, in database.url",
        is_waivable=False,
    ),
    Check(
        lambda facts: not facts.schema_exists and not facts.may_create,
        "the schema {schema} does not exist, and this user cannot create it: run `CREATE SCHEMA {schema} AUTHORIZATION "
        "{user}` as an administrator",
        is_waivable=False,
    ),
    Check(
        lambda facts: facts.schema_exists and not facts.may_use,
        "this user may not use the schema {schema}: run `GRANT USAGE ON SCHEMA {schema} TO {user}` as an administrator",
        is_waivable=False,
    ),
)

WAIVER: Final = "Or set database.allow_unsafe: true and accept the loss."


def refusals(facts: ServerFacts, schema: str, user: str, *, allow_unsafe: bool = False) -> list[str]:
    """The sentences of every check that this server fails."""
    names = {"schema": schema, "user": user, **facts._asdict()}
    sentences = []
    for check in CHECKS:
        if check.is_refused(facts) and not (allow_unsafe and check.is_waivable):
            sentence = "database.url: " + check.sentence.format(**names) + "."
            sentences.append(f"{sentence} {WAIVER}" if check.is_waivable else sentence)
    return sentences


def check_server(pipeline: Pipeline, schema: str, user: str, *, allow_unsafe: bool = False) -> ServerFacts:
    """Read the server's settings on a new connection. Raises StoreRefused with every sentence."""
    facts = read_facts(pipeline, schema)
    if sentences := refusals(facts, schema, user, allow_unsafe=allow_unsafe):
        raise StoreRefused("\n".join(sentences))
    return facts


def read_facts(pipeline: Pipeline, schema: str) -> ServerFacts:
    """Read in a transaction of two trips, as some groups are written, so that a pooler that cannot carry such a group
    is refused."""
    try:
        pipeline.run([BEGIN])
        reply, _ = pipeline.run([StatementCall(_FACTS, (schema,)), COMMIT])
    except (StatementFailed, ConnectionLost) as error:
        if "statement pool" in str(error):
            raise StoreRefused(
                "database.url leads to a pooler in statement mode, which has no transactions: set pool_mode = "
                "transaction in pgbouncer"
            ) from error
        raise
    (row,) = reply.rows
    texts = [b"" if value is None else value for value in row]
    version, version_text, fsync, full_pages, synchronous, standbys, standby, encoding, pid, exists, create, use = texts
    return ServerFacts(
        version=int(version),
        version_text=version_text.decode(),
        fsync=fsync == b"on",
        full_page_writes=full_pages == b"on",
        synchronous_commit=synchronous.decode(),
        standbys=standbys.decode(),
        is_standby=standby == b"t",
        encoding=encoding.decode(),
        is_pooled=int(pid) != pipeline.backend_pid,  # a pooler gives every client a number of its own
        schema_exists=exists == b"t",
        may_create=create == b"t",
        may_use=use == b"t",
    )


_FACTS: Final = Statement(
    "server_facts",
    """\
SELECT current_setting('server_version_num'), current_setting('server_version'), current_setting('fsync'),
 current_setting('full_page_writes'), current_setting('synchronous_commit'),
 current_setting('synchronous_standby_names'), pg_is_in_recovery(), current_setting('server_encoding'),
 pg_backend_pid(), n.oid IS NOT NULL,
 CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
  ELSE has_schema_privilege(n.oid, 'CREATE') END,
 n.oid IS NOT NULL AND has_schema_privilege(n.oid, 'USAGE')
FROM (SELECT to_regnamespace(quote_ident($1::text))::oid) AS n (oid)""",
)
