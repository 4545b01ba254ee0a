"""The figures of the statements on a real server: `python -m tests.postgres.figures [SECTION …]`.

The absolute rates depend on the machine. The CPU of the server per step and the ratios are what to compare.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from stepwire_broker.core.definitions.stored_rows import LeftBehind
from stepwire_broker.store.postgres.address import read_address
from stepwire_broker.store.postgres.connecting import connect
from stepwire_broker.store.postgres.fence import Fence, Position
from stepwire_broker.store.postgres.pipeline import BEGIN, COMMIT, Pipeline
from stepwire_broker.store.postgres.queries import PostgresQueries
from stepwire_broker.store.postgres.readers import PostgresReaders
from stepwire_broker.store.postgres.schema import create_tables
from stepwire_broker.store.postgres.writer import PostgresWriter

from .chains import NOW, Chains, GroupChains, write, write_groups
from .plans import QUESTIONS, fill, plans, reads_everything
from .pooler import Pooler
from .server import PostgresServer

TICKS: Final = os.sysconf("SC_CLK_TCK")
IN_FLIGHT: Final = 1_600  # tasks, over all lanes
STEPS: Final = 40_000  # of a measurement

VARIANTS: Final = {
    "as designed": "",
    "an index of steps WHERE state = …": "CREATE INDEX ON steps (id) WHERE state = 'held'",
    "fillfactor 100": "ALTER TABLE steps SET (fillfactor = 100); ALTER TABLE tasks SET (fillfactor = 100)",
    "fillfactor 80": "ALTER TABLE steps SET (fillfactor = 80)",
    "without the checks of states": (
        "ALTER TABLE steps DROP CONSTRAINT state_fits; ALTER TABLE tasks DROP CONSTRAINT state_fits"
    ),
    "with foreign keys": (
        "INSERT INTO workflows VALUES (1, 'default', 'order', '1', 'd', '{}', 0, true); "
        "ALTER TABLE tasks ADD FOREIGN KEY (workflow_id) REFERENCES workflows; "
        "ALTER TABLE steps ADD FOREIGN KEY (task_id) REFERENCES tasks"
    ),
}


class Figures(NamedTuple):
    steps: int
    wall_s: float
    server_us: float  # CPU a step
    client_us: float
    wal_bytes: float  # a step
    hot: float  # the part of the changes of steps

    def __str__(self) -> str:
        rate = self.steps / self.wall_s
        cpu = f"server {self.server_us:5.1f} µs, client {self.client_us:4.1f} µs a step"
        return f"{rate:8,.0f} steps/s  {cpu}  WAL {self.wal_bytes:5,.0f} B  HOT {self.hot:4.0%}"


def measure(
    server: PostgresServer,
    variant: str = "",
    *,
    url: str = "",
    lanes: int = 1,
    group: int = 400,
    steps: int = STEPS,
    is_prepared: bool = True,
) -> Figures:
    """Write chains in groups of this number of events (two are a step) on this number of lanes, in a new schema."""
    server.sql("DROP SCHEMA IF EXISTS figures CASCADE")
    with server.connect() as connection:
        create_tables(connection, "figures", lanes, first=0)
        connection.execute("SET search_path = figures")
        connection.execute(variant.encode() or b"SELECT 1")
    address = read_address(url or server.socket_url())
    loads = [Chains("figures", lane, max(1, IN_FLIGHT // lanes)) for lane in range(lanes)]
    pipelines = [Pipeline(connect(address, "stepwire figures"), is_prepared=is_prepared) for _ in loads]
    for pipeline, chains in zip(pipelines, loads, strict=True):
        write(
            pipeline, chains, 2 + 2 * IN_FLIGHT // lanes // group, group
        )  # the tasks are at different steps from now on
    done = sum(chains.steps for chains in loads)
    groups = 1 + steps * 2 // group // lanes
    wal, cpu, own, begun = _wal(server), backend_cpu_s(server), time.process_time(), time.monotonic()
    threads = [
        threading.Thread(target=write, args=(pipeline, chains, groups, group))
        for pipeline, chains in zip(pipelines, loads, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s, own = time.monotonic() - begun, time.process_time() - own
    cpu, wal = backend_cpu_s(server) - cpu, _wal(server) - wal
    for pipeline in pipelines:
        pipeline.close()
    count = sum(chains.steps for chains in loads) - done
    server.terminate_backends("stepwire figures")  # of a pooler: a connection that ends passes its counts on
    ((hot,),) = server.sql(
        "SELECT n_tup_hot_upd::float / greatest(n_tup_upd, 1) FROM pg_stat_user_tables "
        "WHERE relid = 'figures.steps'::regclass"
    )
    return Figures(count, wall_s, cpu / count * 1e6, own / count * 1e6, wal / count, float(hot))


def backend_cpu_s(server: PostgresServer) -> float:
    """The CPU that the server's processes for clients have used."""
    pids = server.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
    total = 0
    for (pid,) in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def _wal(server: PostgresServer) -> int:
    return int(server.sql("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")[0][0])


# -- sections ---------------------------------------------------------------------------------------------------------


def variants(server: PostgresServer, steps: int) -> None:
    for name, variant in VARIANTS.items():
        print(f"  {name:36}{measure(server, variant, steps=steps)}", flush=True)


def lanes(server: PostgresServer, steps: int) -> None:
    for group, title in ((0, "groups of all that is in flight"), (40, "groups of 20 steps")):
        for count in (1, 2, 4, 8):
            size = group or IN_FLIGHT // count
            print(f"  {title}, {count} lanes  {measure(server, lanes=count, group=size, steps=steps)}", flush=True)


def poolers(server: PostgresServer, steps: int) -> None:
    direct = measure(server, steps=steps)
    print(f"  direct, prepared          {direct}", flush=True)
    print(f"  direct, not prepared      {measure(server, steps=steps, is_prepared=False)}", flush=True)
    with Pooler(server) as pooler:
        pooled = measure(server, url=pooler.url(), steps=steps, is_prepared=False)
    print(f"  pgbouncer, transactions   {pooled}", flush=True)


def fence(server: PostgresServer, steps: int) -> None:
    """Empty groups, while a transaction holds the oldest snapshot."""
    with server.connect() as connection:
        create_tables(connection, "fences", 1, first=0)
    pipeline = Pipeline(connect(read_address(server.socket_url()), "stepwire figures"), is_prepared=True)
    statement, seq, commits = Fence("fences"), 0, max(steps // 4, 100)
    for title in ("free", "xmin held"):
        with server.connect() as holder:
            if title != "free":
                holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT count(*) FROM pg_class")
            for part in range(4):
                cpu, begun = backend_cpu_s(server), time.monotonic()
                for _ in range(commits):
                    seq += 1
                    pipeline.run([BEGIN, statement.call(Position(0, 0, seq)), COMMIT])
                wall = (time.monotonic() - begun) / commits * 1e6
                cpu = (backend_cpu_s(server) - cpu) / commits * 1e6
                print(f"  {title:10} commits {part * commits:6,}…  {wall:6.0f} µs, server {cpu:5.0f} µs", flush=True)
    pipeline.close()


def writers(server: PostgresServer, steps: int) -> None:
    """The product's own writer: groups of the core, as the lane's thread writes them."""
    for count in (1, 2, 4, 8):
        print(f"  product's writer, {count} lanes  {measure_writer(server, lanes=count, steps=steps)}", flush=True)
    with Pooler(server) as pooler:
        pooled = measure_writer(server, url=pooler.url(), lanes=4, steps=steps, is_prepared=False)
    print(f"  … through pgbouncer, 4 lanes   {pooled}", flush=True)


def held(server: PostgresServer, steps: int) -> None:
    """Groups and looks for work, while a transaction holds the oldest snapshot: 100,000 commits with --steps 100000."""
    commits = max(steps // 4, 25)
    _make(server, "held", 1)
    writer, chains = _writer(server.socket_url(), "held", 0), GroupChains(0, 100)
    for title in ("free", "xmin held"):
        with server.connect() as holder:
            if title != "free":
                holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT count(*) FROM pg_class")
            for part in range(4):
                begun = time.monotonic()
                write_groups(writer, chains, 0, commits, 10)
                wall_us = (time.monotonic() - begun) / commits * 1e6
                look_ms = look_for_work_s(server, "held", {0: LeftBehind(0)}, ["a::B"]) * 1e3
                print(
                    f"  {title:10} commits {part * commits:7,}…  group of 10 events {wall_us:6.0f} µs, "
                    f"look for work {look_ms:6.2f} ms",
                    flush=True,
                )
    writer.close()


def loading(server: PostgresServer, steps: int) -> None:
    """Many stored tasks whose handlers no worker offers, and 1,000 that one offers: the product's look for work."""
    rows = 25 * steps
    _make(server, "loading", 1)
    server.sql(
        "INSERT INTO loading.tasks (id, uid, workflow_id, lane, namespace, state, cancelling, stored, priority, "
        "rank_ms, context_bytes, created_ms, context, wants) "
        "SELECT n, lpad(n::text, 32, '0'), 1, 0, 'd', 'running', false, true, 0, n, 2, n, '{}', "
        "CASE WHEN n % 1000 = 0 THEN 'shop::Offered' ELSE 'shop::Missing' || n % 20 END "
        f"FROM generate_series(1, {rows}) AS n"
    )
    server.sql("ANALYZE loading.tasks")
    for title, wants in {
        "no handler is offered that a task wants": ["a::B", "c::D"],
        "1,000 tasks of an offered handler": ["shop::Offered"],
    }.items():
        look_ms = look_for_work_s(server, "loading", {0: None}, wants) * 1e3
        print(f"  {rows:,} stored tasks: {title:42} {look_ms:6.2f} ms", flush=True)


def all_plans(server: PostgresServer, steps: int) -> None:
    """The plans of every question of the product: 10,000,000 rows of steps with --steps 10000000."""
    _make(server, "plans", 2)
    fill(server, "plans", max(steps // 4, 1))
    for question in QUESTIONS:
        found = plans(server, "plans", question)
        is_bad = any(reads_everything(plan) for plan in found)
        print(f"  {question:40} {'READS A WHOLE TABLE' if is_bad else 'by indexes'}", flush=True)
        if is_bad:
            print("\n".join(found), flush=True)


def measure_writer(
    server: PostgresServer, *, url: str = "", lanes: int = 1, steps: int = STEPS, is_prepared: bool = True
) -> Figures:
    """Write chains with the product's writer, a thread for each lane, in a new schema."""
    _make(server, "figures", lanes)
    loads = [GroupChains(lane, max(1, IN_FLIGHT // lanes)) for lane in range(lanes)]
    each = [_writer(url or server.socket_url(), "figures", lane, is_prepared=is_prepared) for lane in range(lanes)]
    group = IN_FLIGHT // lanes // 4
    for lane, (writer, chains) in enumerate(zip(each, loads, strict=True)):
        write_groups(writer, chains, lane, 2 + 2 * IN_FLIGHT // lanes // group, group)
    done, groups = sum(chains.steps for chains in loads), 1 + steps * 2 // group // lanes
    wal, cpu, own, begun = _wal(server), backend_cpu_s(server), time.process_time(), time.monotonic()
    threads = [
        threading.Thread(target=write_groups, args=(writer, chains, lane, groups, group))
        for lane, (writer, chains) in enumerate(zip(each, loads, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s, own = time.monotonic() - begun, time.process_time() - own
    cpu, wal = backend_cpu_s(server) - cpu, _wal(server) - wal
    for writer in each:
        writer.close()
    count = sum(chains.steps for chains in loads) - done
    server.terminate_backends("stepwire figures")  # a connection that ends passes its counts on
    ((hot,),) = server.sql(
        "SELECT n_tup_hot_upd::float / greatest(n_tup_upd, 1) FROM pg_stat_user_tables "
        "WHERE relid = 'figures.steps'::regclass"
    )
    return Figures(count, wall_s, cpu / count * 1e6, own / count * 1e6, wal / count, float(hot))


def _make(server: PostgresServer, schema: str, lanes: int) -> None:
    server.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    with server.connect() as connection:
        create_tables(connection, schema, lanes, first=0)
    server.sql(f"INSERT INTO {schema}.workflows VALUES (1, 'default', 'order', '1', 'd', '{{}}', 0, true)")


def _writer(url: str, schema: str, lane: int, *, is_prepared: bool = True) -> PostgresWriter:
    address = read_address(url)
    return PostgresWriter(
        lambda: Pipeline(connect(address, "stepwire figures"), is_prepared=is_prepared), schema, lane, 0
    )


def look_for_work_s(
    server: PostgresServer, schema: str, lanes: Mapping[int, LeftBehind | None], wants: Sequence[str]
) -> float:
    """The median time of the product's look for a page of work, on a reader's connection."""
    readers = PostgresReaders(
        read_address(server.socket_url()),
        1,
        PostgresQueries,
        schema=schema,
        is_prepared=True,
        wait_s=60,
        read_ms=60_000,
    )
    look = partial(
        PostgresQueries.load_page, limit=1_000, lanes=lanes, wants=wants, now_ms=NOW, resident_bytes_max=16_384
    )
    times = sorted(_timed(lambda: readers.read(look).result(60)) for _ in range(20))
    readers.close()
    return times[10]


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


SECTIONS: Final[dict[str, Callable[[PostgresServer, int], None]]] = {
    "variants": variants,
    "lanes": lanes,
    "poolers": poolers,
    "fence": fence,
    "loading": loading,
    "writer": writers,
    "held": held,
    "plans": all_plans,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.postgres.figures", description=__doc__)
    parser.add_argument("section", nargs="*", choices=[*SECTIONS, []], default=[])
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each measurement")
    parser.add_argument("--in-memory", action="store_true", help="keep the server's data in memory, not on the disk")
    given = parser.parse_args(arguments)
    with PostgresServer({"shared_buffers": "512MB", "max_wal_size": "4GB"}, on_disk=not given.in_memory) as server:
        print(server.sql("SELECT version()")[0][0])
        for name in given.section or SECTIONS:
            print(f"{name}:")
            SECTIONS[name](server, given.steps)


if __name__ == "__main__":
    main()
