"""Hostile folders, archives and models, and what may be taken because it is harmless."""

import json
import os
import sqlite3
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.reliability.hostile_parts import (
    LONG,
    MIB,
    WITHOUT_END,
    Case,
    case_of,
    example_of,
    file_of_bytes,
    put_socket,
    run_sql,
)
from tests.formats.examples import EXAMPLES


def of_folders() -> Iterator[Case]:
    for make in (
        _too_deep, _too_many, _too_many_at_one_place, _loop_of_links, _link_to_the_root, _the_path_is_a_link,
        _the_path_is_a_pipe, _the_path_is_a_device, _the_path_is_a_socket, _names_that_steer, _names_of_no_text,
        _archive_with_links, _archive_bomb, _model_with_weights_of_the_host, _model_without_end, _yaml_alone,
        _pickle, _links_at_every_depth, _ranks_that_are_links, _a_thousand_files_of_holes,
    ):  # fmt: skip
        yield case_of(f"folders: {make.__name__.strip('_').replace('_', ' ')}", make)


def _too_deep(folder: Path, host: Path) -> Path:
    deep = folder / "in" / Path(*["a"] * 200)
    deep.mkdir(parents=True)
    EXAMPLES["rocprofv3_csv"](deep)
    return folder / "in"


def _too_many(folder: Path, host: Path) -> Path:
    for number in range(210):
        (folder / f"in/{number}").mkdir(parents=True)
        for inner in range(100):
            (folder / f"in/{number}/{inner}").touch()
    EXAMPLES["rocprofv3_csv"](folder / "in")
    return folder / "in"


def _too_many_at_one_place(folder: Path, host: Path) -> Path:
    (folder / "in").mkdir()
    for number in range(100_000):
        os.mknod(folder / f"in/{number}")
    return folder / "in"


def _a_thousand_files_of_holes(folder: Path, host: Path) -> Path:
    """None of them larger than a file may be, and all of them larger than a disk."""
    beside = example_of("thread_trace", folder).parent
    for number in range(1_000):
        (beside / f"se{number}.json").touch()
        os.truncate(beside / f"se{number}.json", 4 << 30)
    return folder / "in"


def _loop_of_links(folder: Path, host: Path) -> Path:
    (folder / "in/a").mkdir(parents=True)
    (folder / "in/a/b").symlink_to(folder / "in")
    (folder / "in/self").symlink_to("self")
    return folder / "in"


def _link_to_the_root(folder: Path, host: Path) -> Path:
    (folder / "in").mkdir()
    (folder / "in/root").symlink_to("/")
    (folder / "in/host").symlink_to(host)
    return folder / "in"


def _links_at_every_depth(folder: Path, host: Path) -> Path:
    at = folder / "in"
    for name in ("a", "b", "c"):
        at.mkdir()
        for number, source in enumerate(sorted(host.iterdir())):
            (at / f"{number}_{source.name}").symlink_to(source)
        at /= name
    return folder / "in"


def _ranks_that_are_links(folder: Path, host: Path) -> Path:
    (folder / "in").mkdir()
    for rank in range(4):
        (folder / f"in/rank{rank}.json").symlink_to(host / "kineto/trace.json")
    return folder / "in"


def _the_path_is_a_link(folder: Path, host: Path) -> Path:
    (folder / "in").symlink_to(host)
    return folder / "in"


def _the_path_is_a_pipe(folder: Path, host: Path) -> Path:
    os.mkfifo(folder / "1_results.db")
    return folder / "1_results.db"


def _the_path_is_a_device(folder: Path, host: Path) -> Path:
    return Path("/dev/zero")


def _the_path_is_a_socket(folder: Path, host: Path) -> Path:
    (folder / "1_results.db").touch()
    put_socket(folder / "1_results.db", host)
    return folder / "1_results.db"


def _names_that_steer(folder: Path, host: Path) -> Path:
    path = folder / "in\n\x1b[2J\x1b]0;owned\x07\u202e"
    path.mkdir()
    (path / "1_results.db\n\x1b[31m").write_bytes(b"SQLite format 3\0rocpd_metadata_x")
    return path


def _names_of_no_text(folder: Path, host: Path) -> Path:
    path = folder / os.fsdecode(b"in\xff\xfe")
    path.mkdir()
    content = b"SQLite format 3\0rocpd_metadata_x rocpd_kernel_dispatch" + bytes(4096)
    (path / os.fsdecode(b"1_results\xff.db")).write_bytes(content)
    return path


def _archive_with_links(folder: Path, host: Path) -> Path:
    (folder / "in").mkdir()
    with tarfile.open(folder / "in/1_results.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo("1_kernel_trace.csv")
        link.type, link.linkname = tarfile.SYMTYPE, str(host / "secret.txt")
        archive.addfile(link)
    return folder / "in"


def _archive_bomb(folder: Path, host: Path) -> Path:
    (folder / "in").mkdir()
    with zipfile.ZipFile(folder / "in/1_results.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(50):
            archive.writestr(f"{number}.json", b" " * (8 * MIB))
    return folder / "in"


def _onnx(content: bytes, folder: Path) -> Path:
    return file_of_bytes(folder, folder, file="model.onnx", content=content)


def _model_with_weights_of_the_host(folder: Path, host: Path) -> Path:
    from onnx import TensorProto, helper

    weight = helper.make_tensor("w", TensorProto.FLOAT, [4], [0.0] * 4)
    weight.ClearField("float_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=str(host / "secret.txt"))
    graph = helper.make_graph([helper.make_node("Relu", ["w"], ["y"])], "graph", [], [], [weight])
    return _onnx(helper.make_model(graph).SerializeToString(), folder)


def _model_without_end(folder: Path, host: Path) -> Path:
    """A graph within a graph within a graph: every level is one length before the next."""
    inner = b""
    for _ in range(20_000):
        inner = b"\x3a" + _varint(len(inner)) + inner
    return _onnx(inner, folder)


def _varint(value: int) -> bytes:
    content = bytearray()
    while value > 127:
        content.append(value & 127 | 128)
        value >>= 7
    return bytes([*content, value])


_LAUGHS: Final = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(99 + n)}: &{chr(99 + n)} [{','.join(['*' + ('a' if n == 0 else chr(98 + n))] * 9)}]\n" for n in range(20)
)


def _yaml_alone(folder: Path, host: Path) -> Path:
    return file_of_bytes(folder, host, file="profiling_config.yaml", content=_LAUGHS.encode())


def _pickle(folder: Path, host: Path) -> Path:
    return file_of_bytes(folder, host, file="1_results.db", content=b"\x80\x04cos\nsystem\n(S'touch /tmp/owned'\ntR.")


def of_taken() -> Iterator[Case]:
    trigger = "CREATE TRIGGER t AFTER UPDATE ON rocpd_metadata_1 BEGIN INSERT INTO rocpd_metadata_1 VALUES (1, 2); END"

    def with_view(folder: Path, host: Path) -> Path:
        run_sql(example_of("rocpd", folder), f"CREATE VIEW everything AS {WITHOUT_END} x FROM n", trigger)
        return folder / "in"

    yield Case("taken: a database with triggers and a view without end", with_view, "neither is in the copy")
    yield Case(
        "taken: settings that are a YAML bomb",
        partial(_yaml_beside, content=_LAUGHS),
        "the settings are not read, and said so",
    )
    yield Case(
        "taken: settings that would run a program",
        partial(_yaml_beside, content="a: !!python/object/apply:os.system ['touch /tmp/owned']\n"),
        "nothing is run",
    )
    yield Case("taken: a name of ten million characters", _long_name, "it is cut, and said so")
    yield Case("taken: sources that are the host's", _sources_of_the_host, "they are not looked for outside")
    yield Case("taken: links beside a whole capture", _links_beside, "they are listed and not followed")


def _yaml_beside(folder: Path, host: Path, *, content: str) -> Path:
    file = example_of("rocprof_compute", folder)
    (file.parent / "profiling_config.yaml").write_text(content)
    return folder / "in"


def _long_name(folder: Path, host: Path) -> Path:
    file = example_of("rocpd", folder)
    with closing(sqlite3.connect(file)) as database:
        database.execute("INSERT INTO rocpd_metadata_1 VALUES ('name', ?)", ("x" * LONG,))
        database.commit()
    return folder / "in"


def _sources_of_the_host(folder: Path, host: Path) -> Path:
    file = example_of("thread_trace", folder)
    names: dict[str, Any] = {
        str(host / "secret.txt"): f"../../../../{host.name}/secret.txt",
        "/etc/passwd": "/etc/passwd",
    }
    (file.parent / "snapshots.json").write_text(json.dumps(names))
    return folder / "in"


def _links_beside(folder: Path, host: Path) -> Path:
    example_of("rocprofv3_csv", folder)
    (folder / "in/2_kernel_trace.csv").symlink_to(host / "rocprofv3_csv/1_kernel_trace.csv")
    (folder / "in/deeper").symlink_to(host)
    return folder / "in"
