"""What Dagster's interface to its storage lacks: one connection a database, and forgetting a run with all its events.

Dagster opens an engine, a connection and a fresh statement cache for every event, and makes the database of each run by
loading the history of its migrations: about half of what a short session costs. The same code of Dagster's writes the
same rows here, through connections that stay open until the run has ended. Other storages are left as they are.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Final

import dagster as dg
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME, SqliteEventLogStorage
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

#: How long a write waits for another process's.
_BUSY_SECONDS: Final = 60


class Kept:
    """The connections that stay open; where there are none, events are stored as Dagster stores them."""

    def __init__(self) -> None:
        self.opened: Final[dict[str, Connection]] = {}
        self.holds = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A block whose events become visible together, at its end, also when it ends with an error.

        Short: from its first event to its end no other process can store one.
        """
        self.holds = True
        try:
            yield
        finally:
            self.holds = False
            for connection in self.opened.values():
                connection.commit()


@contextmanager
def connections_kept(instance: dg.DagsterInstance, run_id: str | None = None) -> Iterator[Kept]:
    """While this is open, events of a run, or of none, are written through one connection for each database."""
    storage: Any = instance.event_log_storage
    kept = Kept()
    if not isinstance(storage, SqliteEventLogStorage):
        yield kept
        return
    opened = kept.opened
    as_it_was = storage._connect
    with ExitStack() as stack:

        @contextmanager
        def connect(shard: str) -> Iterator[Connection]:
            if shard not in opened:
                with as_it_was(shard):  # makes the database where there is none
                    pass
                address = storage.conn_string_for_shard(shard)
                engine = create_engine(address, poolclass=NullPool, connect_args={"timeout": _BUSY_SECONDS})
                stack.callback(engine.dispose)
                opened[shard] = stack.enter_context(engine.connect())
            connection = opened[shard]
            if kept.holds and not connection.in_transaction():
                connection.begin()
            with nullcontext() if connection.in_transaction() else connection.begin():
                yield connection

        if run_id is not None:
            _make_shard(storage, run_id)
        # Instance attributes over the methods, taken off below. Before every check's result Dagster connects to look
        # whether there is a table for it.
        setattr(storage, "_connect", connect)  # noqa: B010
        setattr(storage, "has_table", cache(storage.has_table))  # noqa: B010
        try:
            yield kept
        finally:
            del storage._connect, storage.has_table  # the class's own again


def stored_bytes(instance: dg.DagsterInstance, run_id: str) -> int:
    """The bytes of a run's own database of events; 0 where runs have none."""
    return sum(path.stat().st_size for path in _files_of(instance, run_id))


def forget_run(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete a run, its events and its checks' results; nothing where there is no such run.

    The run itself goes last: killed and called again, it is still found. `DagsterInstance.delete_run` deletes it first,
    and keeps the results of checks and the emptied databases.
    """
    storage: Any = instance.event_log_storage
    with storage.index_connection() as connection:
        storage.delete_events_for_run(connection, run_id)
        connection.execute(AssetCheckExecutionsTable.delete().where(AssetCheckExecutionsTable.c.run_id == run_id))
    storage.free_concurrency_slots_for_run(run_id)
    for path in _files_of(instance, run_id):
        path.unlink(missing_ok=True)
    instance.run_storage.delete_run(run_id)


def _files_of(instance: dg.DagsterInstance, run_id: str) -> list[Path]:
    """The files of a run's own database, where the storage is SQLite."""
    storage = instance.event_log_storage
    if not isinstance(storage, SqliteEventLogStorage):
        return []
    shard = storage.path_for_shard(run_id)
    return [path for path in (Path(f"{shard}{end}") for end in ("-wal", "-shm", "")) if path.exists()]


def _make_shard(storage: Any, run_id: str) -> None:
    """The empty database of a run, with the tables of the index, which have the same form in the same release."""
    index, shard = (
        Path(storage.conn_string_for_shard(name).removeprefix("sqlite:///")) for name in (INDEX_SHARD_NAME, run_id)
    )
    if shard.exists() or not index.exists():
        return
    with closing(sqlite3.connect(f"file:{index}?mode=ro", uri=True)) as source:
        made = source.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'")
        statements = [statement for (statement,) in made]
        revisions = source.execute("SELECT version_num FROM alembic_version").fetchall()
    with closing(sqlite3.connect(shard)) as target, target:
        target.execute("PRAGMA journal_mode=WAL")
        for statement in statements:
            target.execute(statement)
        target.executemany("INSERT INTO alembic_version VALUES (?)", revisions)
    storage._initialized_dbs.add(run_id)
