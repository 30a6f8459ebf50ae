"""A database written anew keeps every record and nothing that executes; what is made to hurt ends in one line."""

import importlib.util
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import nsys, rocpd
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.resources import sqlite_copy
from aaco_pipeline.resources.sqlite_copy import copy_database
from tests.formats.nsys import nsys_exports
from tests.places import ROOT, SHARED

TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1"
GUID = "00003fdc_92cb_72cb_9169_c7e541b1fcdf"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small database as rocprofv3 writes it, from the benchmarks' generator."""
    specification = importlib.util.spec_from_file_location(
        "generate_rocpd", ROOT / "benchmarks/performance/generate_rocpd.py"
    )
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    path = tmp_path_factory.mktemp("rocpd") / "28_results.db"
    module.generate(path, dispatches=20)
    return path


def changed(source: Path, folder: Path, *statements: str, parameters: tuple[object, ...] = ()) -> Path:
    """A copy of the database after these statements, byte for byte as SQLite leaves it."""
    path = folder / source.name
    path.write_bytes(source.read_bytes())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            connection.execute(statement, parameters if "?" in statement else ())
    return path


def made(*statements: str, at: Path) -> Path:
    with closing(sqlite3.connect(at, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    return at


def copied(source: Path, folder: Path) -> tuple[Path, int]:
    target = folder / "copy" / source.name.removesuffix(".gz")
    target.parent.mkdir()
    return target, copy_database(source, target, Limits())


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def assert_same_reading(source: Path, copy: Path) -> None:
    first, second = rocpd.read(source), rocpd.read(copy)
    assert list(first.tables) == list(second.tables)
    assert [name for name, table in first.tables.items() if not table.equals(second.tables[name])] == []
    assert [name for name, table in first.details.items() if not table.equals(second.details[name])] == []
    assert [(one.item, one.status, one.reason, one.rows) for one in first.evidence] == [
        (one.item, one.status, one.reason, one.rows) for one in second.evidence
    ]


CAPTURES = sorted((SHARED / "captures").rglob("*_results*.db"))


@pytest.mark.parametrize("source", CAPTURES or [None], ids=lambda path: path.stem if path else "none")
def test_every_real_database_reads_the_same(source: Path | None, tmp_path: Path) -> None:
    if source is None:
        pytest.skip("the shared captures are not here")
    copy, _ = copied(source, tmp_path)
    assert_same_reading(source, copy)
    assert rows(copy, "SELECT DISTINCT type FROM sqlite_master") == [("table",)]


def test_all_records_stay_in_their_order_also_of_unknown_tables(generated: Path, tmp_path: Path) -> None:
    source = changed(
        generated,
        tmp_path,
        'CREATE TABLE later_kind ("odd ""name\n" TEXT, size INT, ratio REAL, data)',
        "INSERT INTO later_kind VALUES ('b', 2, 0.1, 'x'), ('a', -9223372036854775808, 1e300, 3), (NULL, NULL, 2, 0)",
        "CREATE TABLE keyed (k TEXT PRIMARY KEY, v INTEGER) WITHOUT ROWID",
        "INSERT INTO keyed VALUES ('z', 1), ('y', 2)",
    )
    copy, hits = copied(source, tmp_path)
    assert hits == 0
    assert_same_reading(source, copy)
    for table in ("later_kind", "keyed"):
        assert rows(copy, f"SELECT * FROM {table}") == rows(source, f"SELECT * FROM {table}")
    for (kind,) in rows(source, "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'rocpd%'"):
        assert rows(copy, f'SELECT rowid, * FROM "{kind}"') == rows(source, f'SELECT rowid, * FROM "{kind}"')


def test_the_same_database_gives_the_same_bytes(generated: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (first, _), (second, _) = copied(generated, tmp_path / "a"), copied(generated, tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()


def test_no_secret_stays_in_any_column_or_free_page(generated: Path, tmp_path: Path) -> None:
    source = changed(
        generated,
        tmp_path,
        "PRAGMA secure_delete = OFF",
        "CREATE TABLE gone (t TEXT)",
        "INSERT INTO gone SELECT 'free-page-hunter2' FROM sqlite_master",
        "DROP TABLE gone",
        f"UPDATE rocpd_info_process_{GUID} SET command = 'app -u x -p hunter2a --n 4', environment = ?",
        f'UPDATE rocpd_kernel_dispatch_{GUID} SET extdata = \'{{"api_key": "hunter2b"}}\' WHERE id = 3',
        f"UPDATE rocpd_info_kernel_symbol_{GUID} SET display_name = 'k {TOKEN}' WHERE id = 1",
        f"INSERT INTO rocpd_metadata_{GUID} (tag, value) VALUES ('db_password', 'hunterc'), ('note', 'redis://:hunter2d@h')",
        parameters=(json.dumps({"HOME": "/home/hunter2e", "RANK": "3"}),),
    )
    assert b"free-page-hunter2" in source.read_bytes()
    copy, hits = copied(source, tmp_path)
    assert b"hunter" not in copy.read_bytes()
    assert TOKEN.encode() not in copy.read_bytes()
    assert hits == 6
    assert rows(copy, f"SELECT command, environment FROM rocpd_info_process_{GUID}") == [
        ("app -u x -p redacted --n 4", '{"RANK": "3"}')
    ]
    assert rocpd.read(copy).tables["dispatches"].height == 20


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(["password=hunter2a"] * 3, id="one text in every row"),
        pytest.param([None, None, "password=hunter2a"], id="one text behind nulls"),
        pytest.param([5, "password=hunter2a"], id="beside a number"),
        pytest.param(["password=HUNTER2a", "password=hunter2a"], id="in two cases"),
        pytest.param([b"\xff", "password=hunter2a"], id="beside a binary value"),
    ],
)
def test_a_secret_goes_whatever_else_its_column_holds(values: list[object], tmp_path: Path) -> None:
    source = made("CREATE TABLE rocpd_x (note TEXT COLLATE NOCASE)", at=tmp_path / "s.db")
    with closing(sqlite3.connect(source, isolation_level=None)) as connection:
        connection.executemany("INSERT INTO rocpd_x VALUES (?)", [(value,) for value in values])
    copy, _ = copied(source, tmp_path)
    assert b"hunter" not in copy.read_bytes().lower()
    assert len(rows(copy, "SELECT note FROM rocpd_x")) == len(values)


def test_an_export_of_nsight_systems_loses_its_environments_and_no_record(tmp_path: Path) -> None:
    arguments = ((0, "--password"), (1, "hunter2a"), (2, "--n"), (10, "10"))
    said = ", ".join(f"('PROCESS_0:ARGUMENT_{number}', '{word}')" for number, word in arguments)
    source = nsys_exports.changed(
        nsys_exports.made(tmp_path / "report.sqlite"),
        "DELETE FROM META_DATA_CAPTURE WHERE name LIKE '%ARGUMENT%'",
        f"INSERT INTO META_DATA_CAPTURE VALUES {said}, ('PROCESS_0:ENVIRONMENT_VARIABLE', 'HOME=\"/home/hunter2b\"')",
        "INSERT INTO TARGET_INFO_SYSTEM_ENV (name, value) VALUES ('DeviceEnvironment', 'USER=hunter2c;OMP_PLACES=2')",
        "INSERT INTO StringIds VALUES (50, 'A=hunter2d' || char(0) || 'NCCL_DEBUG=INFO' || char(0) || 'B=hunter2e')",
        "INSERT INTO StringIds VALUES (51, 'logged in with token=hunter2f')",
    )
    copy, _ = copied(source, tmp_path)
    assert b"hunter2" not in copy.read_bytes()
    first, second = nsys.read(source), nsys.read(copy)
    assert [name for name, table in first.tables.items() if not table.equals(second.tables[name])] == []
    assert second.tables["processes"].item(0, "command") == "./saxpy --password redacted --n 10"
    assert rows(copy, "SELECT value FROM StringIds WHERE id = 50") == [("NCCL_DEBUG=INFO",)]


def test_what_executes_is_not_copied(generated: Path, tmp_path: Path) -> None:
    source = changed(
        generated,
        tmp_path,
        f"CREATE TRIGGER t AFTER UPDATE ON rocpd_info_process_{GUID} BEGIN INSERT INTO rocpd_string_{GUID} (string) "
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n; END",
        "CREATE TABLE big (a INTEGER, c TEXT DEFAULT 'd' CHECK (a < 99))",
        "INSERT INTO big (a) VALUES " + ", ".join(f"({number})" for number in range(20)),
        "ALTER TABLE big ADD COLUMN b TEXT AS (printf('%500000000d', a))",
        "CREATE INDEX later ON big (a)",
        "CREATE VIEW v0 AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
        *(f"CREATE VIEW v{step} AS SELECT 1 AS x FROM v{step - 1}, v{step - 1}" for step in range(1, 40)),
    )
    copy, _ = copied(source, tmp_path)
    assert rows(copy, "SELECT DISTINCT type FROM sqlite_master") == [("table",)]
    assert rows(copy, "SELECT sql FROM sqlite_master WHERE name = 'big'") == [
        ('CREATE TABLE "big" ("a" INTEGER, "c" TEXT)',)
    ]
    assert rows(copy, "SELECT count(*), sum(a) FROM big") == [(20, 190)]
    assert copy.stat().st_size < 4 << 20


def test_binary_values_go_and_long_texts_are_cut(tmp_path: Path) -> None:
    source = made(
        "CREATE TABLE rocpd_x (name TEXT, n INTEGER, data)",
        "INSERT INTO rocpd_x VALUES (printf('%.10000000c', 'n'), x'00ff', x'ff'), ('short', 5, 'text')",
        at=tmp_path / "s.db",
    )
    copy, hits = copied(source, tmp_path)
    assert rows(copy, "SELECT length(name), n, data FROM rocpd_x") == [(1 << 20, None, None), (5, 5, "text")]
    assert hits == 3


def test_a_long_text_that_every_row_has_is_cut(tmp_path: Path) -> None:
    source = made(
        "CREATE TABLE rocpd_x (name TEXT)",
        "INSERT INTO rocpd_x VALUES (NULL), (printf('%.2000000c', 'n')), (printf('%.2000000c', 'n'))",
        at=tmp_path / "s.db",
    )
    copy, hits = copied(source, tmp_path)
    assert rows(copy, "SELECT length(name) FROM rocpd_x") == [(None,), (1 << 20,), (1 << 20,)]
    assert hits == 1


def test_texts_that_are_not_utf_8_stay(tmp_path: Path) -> None:
    source = made("CREATE TABLE x (name TEXT)", "INSERT INTO x VALUES (CAST(x'61ff62' AS TEXT))", at=tmp_path / "s.db")
    copy, _ = copied(source, tmp_path)
    assert rows(copy, "SELECT CAST(name AS BLOB) FROM x") == [(b"a\xffb",)]


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_databases_of_two_byte_characters_are_copied(encoding: str, tmp_path: Path) -> None:
    statements = ("CREATE TABLE x (name TEXT)", f"INSERT INTO x VALUES ('é'), ('{TOKEN}')")
    source = made(f"PRAGMA encoding = '{encoding}'", *statements, at=tmp_path / "s.db")
    copy, hits = copied(source, tmp_path)
    assert rows(copy, "SELECT name FROM x") == [("é",), ("redacted",)]
    assert hits == 1


def with_table(sql: str) -> Callable[[Path], Path]:
    return lambda at: made(sql, at=at)


def cut(at: Path) -> Path:
    made("CREATE TABLE x (a)", "INSERT INTO x VALUES (zeroblob(50000))", at=at)
    at.write_bytes(at.read_bytes()[:9_000])
    return at


def garbled(at: Path) -> Path:
    made("CREATE TABLE x (a TEXT)", "INSERT INTO x VALUES (printf('%.60000c', 'y'))", at=at)
    content = bytearray(at.read_bytes())
    content[4096:8192] = b"\xa7" * 4096
    at.write_bytes(bytes(content))
    return at


def repeated(at: Path) -> Path:
    """An inner page whose every child is the same page: rows without end out of a small file."""
    made("PRAGMA page_size = 512", "CREATE TABLE x (a TEXT)", at=at)
    with closing(sqlite3.connect(at)) as connection:
        connection.executemany("INSERT INTO x VALUES (?)", [(f"{number:0100d}",) for number in range(3_000)])
        connection.commit()
    content = bytearray(at.read_bytes())
    root = content[512:1024]
    cells = int.from_bytes(root[3:5], "big")
    for cell in range(cells):
        place = 512 + int.from_bytes(root[12 + 2 * cell : 14 + 2 * cell], "big")
        content[place : place + 4] = (2).to_bytes(4, "big")
    at.write_bytes(bytes(content))
    return at


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda at: (at.write_bytes(b"") and at) or at, "not an SQLite database"),
        (lambda at: at.write_bytes(b"encrypted" * 900) and at, "not an SQLite database, or an encrypted one"),
        (lambda at: at.write_bytes(b"SQLite format 3\0" + b"\x07" * 5_000) and at, "cut off"),
        (cut, "cut off"),
        (garbled, "SQLite cannot read it"),
        (repeated, "SQLite cannot read it"),
        (with_table(f"CREATE TABLE x ({', '.join(f'c{n}' for n in range(2_000))})"), None),
        (lambda at: made("CREATE TABLE x (a)", "INSERT INTO x VALUES (zeroblob(70000000))", at=at), "too big"),
    ],
    ids=["empty", "encrypted", "rubbish", "cut", "garbled", "repeated", "wide", "large value"],
)
def test_what_is_damaged_ends_in_one_line(make: Callable[[Path], Path], reason: str | None, tmp_path: Path) -> None:
    source = make(tmp_path / "s.db")
    if reason is None:
        copied(source, tmp_path)
        return
    with pytest.raises(CaptureError, match=reason) as told:
        copied(source, tmp_path)
    assert "\n" not in str(told.value)
    assert list((tmp_path / "copy").iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "reason"), [("_SECONDS", "takes longer than .* s of CPU time"), ("_LEAST_GROWTH_BYTES", "become more")]
)
def test_a_copy_without_end_is_stopped(
    setting: str, reason: str, generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_copy, setting, -1e9)
    monkeypatch.setattr(sqlite_copy, "_STEPS", 10)
    with pytest.raises(CaptureError, match=reason):
        copied(generated, tmp_path)


def test_a_copy_on_a_busy_machine_is_not_stopped_while_it_waits(
    generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_copy, "_SECONDS", 0.0)
    monkeypatch.setattr(sqlite_copy, "_STEPS", 10)
    monkeypatch.setattr("time.thread_time", lambda: 0.0)
    copied(generated, tmp_path)


def test_more_rows_than_the_limit_are_refused(generated: Path, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="more than 30 rows"):
        copy_database(generated, tmp_path / "copy.db", Limits(events=30))


def test_no_room_for_the_copy_is_no_fault_of_the_capture(generated: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot write"):
        copy_database(generated, tmp_path / "missing" / "copy.db", Limits())


def test_an_unfinished_database_is_refused(generated: Path, tmp_path: Path) -> None:
    source = changed(generated, tmp_path)
    source.with_name(source.name + "-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(28))
    with pytest.raises(CaptureError, match="not finished"):
        copied(source, tmp_path)


def test_a_file_whose_name_is_no_text_is_copied(generated: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"1_\xff_results.db")
    odd.write_bytes(generated.read_bytes())
    assert copy_database(odd, tmp_path / "copy.db", Limits()) == copy_database(generated, tmp_path / "b.db", Limits())
    assert (tmp_path / "copy.db").read_bytes() == (tmp_path / "b.db").read_bytes()
