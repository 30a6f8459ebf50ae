"""Make kernel plane recordings for tests: a document and pages of a ring buffer, by plain loops."""

import gzip
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PAGE: Final = 512
MISSED: Final = 1 << 31
STORED: Final = 1 << 30


@dataclass(frozen=True)
class Record:
    """One record, `delta` ns after the one before, with its data; or one without: `extend`, `stamp`, `discarded`."""

    delta: int
    data: bytes = b""
    kind: str = "data"
    value: int = 0

    def encoded(self) -> bytes:
        head = self.delta & 0x7FFFFFF
        if self.kind == "extend":
            return struct.pack("<II", head << 5 | 30, self.value)
        if self.kind == "stamp":
            return struct.pack("<II", head << 5 | 31, self.value)
        words = -(-len(self.data) // 4)
        padded = self.data.ljust(4 * words, b"\0")
        if self.kind == "discarded":
            return struct.pack("<II", (head or 1) << 5 | 29, 4 + len(padded) - 4) + padded[4:]
        if words <= 28 and words:
            return struct.pack("<I", head << 5 | words) + padded
        return struct.pack("<II", head << 5, len(padded) + 4) + padded


def page(began_ns: int, records: Sequence[Record], *, flags: int = 0, missed: int | None = None) -> bytes:
    """A page of `PAGE` bytes with these records."""
    content = b"".join(record.encoded() for record in records)
    stored = b"" if missed is None else struct.pack("<Q", missed)
    assert len(content) + len(stored) <= PAGE - 16
    return (struct.pack("<QQ", began_ns, len(content) | flags) + content + stored).ljust(PAGE, b"\0")


def plainly_read(pages: Sequence[tuple[int, Sequence[Record]]]) -> list[tuple[int, bytes]]:
    """When each record with data was written, and its data up to whole words."""
    found = []
    for began_ns, records in pages:
        at = began_ns
        for record in records:
            if record.kind == "extend":
                at += (record.value << 27) + record.delta
            elif record.kind == "stamp":
                at = (at >> 59 << 59) | (record.value << 27) + record.delta
            else:
                at += (record.delta or 1) if record.kind == "discarded" else record.delta
                if record.kind == "data":
                    found.append((at, record.data.ljust(-(-len(record.data) // 4) * 4, b"\0")))
    return found


#: Number and own fields of each event: type, name, bytes, by C's rules of alignment.
EVENTS: Final[Mapping[str, tuple[int, tuple[tuple[str, str, int], ...]]]] = {
    "sched/sched_switch": (
        10,
        (
            *(("char", "prev_comm[16]", 16), ("pid_t", "prev_pid", 4), ("int", "prev_prio", 4)),
            *(
                ("long", "prev_state", 8),
                ("char", "next_comm[16]", 16),
                ("pid_t", "next_pid", 4),
                ("int", "next_prio", 4),
            ),
        ),
    ),
    "sched/sched_waking": (
        11,
        (("char", "comm[16]", 16), ("pid_t", "pid", 4), ("int", "prio", 4), ("int", "target_cpu", 4)),
    ),
    "sched/sched_process_fork": (
        12,
        (
            *(("char", "parent_comm[16]", 16), ("pid_t", "parent_pid", 4)),
            *(("char", "child_comm[16]", 16), ("pid_t", "child_pid", 4)),
        ),
    ),
    "sched/sched_stat_runtime": (13, (("__data_loc char[]", "comm", 4), ("pid_t", "pid", 4), ("u64", "runtime", 8))),
    "exceptions/page_fault_user": (14, (("unsigned long", "address", 8),)),
    "raw_syscalls/sys_enter": (15, (("long", "id", 8),)),
    "raw_syscalls/sys_exit": (16, (("long", "id", 8), ("long", "ret", 8))),
    "irq_vectors/local_timer_entry": (17, (("int", "vector", 4),)),
    "irq_vectors/local_timer_exit": (18, (("int", "vector", 4),)),
    "irq/irq_handler_entry": (19, (("int", "irq", 4), ("__data_loc char[]", "name", 4))),
    "irq/irq_handler_exit": (20, (("int", "irq", 4), ("int", "ret", 4))),
    "irq/softirq_entry": (21, (("int", "vec", 4),)),
    "kmem/rss_stat": (22, (("unsigned int", "mm_id", 4), ("unsigned int", "curr", 4), ("int", "member", 4))),
}
#: When a recording begins and ends, in ns on the monotonic clock.
BEGAN: Final = 10
ENDED: Final = 10_000
HEADER_PAGE: Final = (
    "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n"
    f"\tfield: char data;\toffset:16;\tsize:{PAGE - 16};\tsigned:0;\n"
)


def placed(event: str) -> list[tuple[str, str, int, int]]:
    """The fields of an event with their offsets: type, name, offset, size."""
    rows = [("unsigned short", "common_type", 0, 2), ("unsigned char", "common_flags", 2, 1)]
    rows += [("unsigned char", "common_preempt_count", 3, 1), ("int", "common_pid", 4, 4)]
    at = 8
    for kind, name, size in EVENTS[event][1]:
        align = 1 if kind == "char" else min(size, 8)
        at = -(-at // align) * align
        rows.append((kind, name, at, size))
        at += size
    return rows


def format_text(event: str) -> str:
    """The kernel's own description of an event."""
    signed = {"pid_t", "int", "long"}
    lines = [
        f"\tfield:{kind} {name};\toffset:{at};\tsize:{size};\tsigned:{int(kind in signed)};"
        for kind, name, at, size in placed(event)
    ]
    name = event.rpartition("/")[2]
    return "\n".join([f"name: {name}", f"ID: {EVENTS[event][0]}", "format:", *lines, "", "print fmt: x", ""])


def data_of(event: str, by: int, flags: int = 0, **values: Any) -> bytes:
    """The bytes of one event, written while thread `by` ran."""
    rows = placed(event)
    text = values.pop("text", b"")
    assert isinstance(text, bytes)
    content = bytearray(max(at + size for _, _, at, size in rows))
    struct.pack_into("<HBBi", content, 0, EVENTS[event][0], flags, 0, by)
    for kind, name, at, size in rows[4:]:
        value = values.get(name.partition("[")[0], b"" if kind == "char" else 0)
        if kind.startswith("__data_loc"):
            struct.pack_into("<I", content, at, len(content) | (len(text) + 1) << 16)
        elif isinstance(value, bytes):
            content[at : at + size] = value.ljust(size, b"\0")
        else:
            struct.pack_into({4: "<i", 8: "<q"}[size], content, at, value)
    return bytes(content) + (text + b"\0" if any(row[0].startswith("__data_loc") for row in rows) else b"")


Buffers = Mapping[tuple[str, int], Sequence[tuple[int, bytes]]]


def recorded(folder: Path, written: Buffers, **more: Any) -> dict[str, Any]:
    """The document of a recording, whose pages lie in `folder`: by instance and CPU the events with their times."""
    (folder / "kernel_plane").mkdir(exist_ok=True)
    files = []
    for (instance, cpu), events in written.items():
        content = b"".join(page(at, [Record(0, data)]) for at, data in events)
        name = f"{instance}.cpu{cpu}.pages.gz"
        (folder / "kernel_plane" / name).write_bytes(gzip.compress(content))
        files.append({"instance": instance, "cpu": cpu, "file": name, "bytes": len(content), "stats": {"overrun": 0}})
    return {
        **{"format": "aaco-kernel-plane", "format_version": 1, "state": "present", "reason": None, "fix": None},
        **{"source": "tracefs", "machine": "x86_64", "processes": {"latency": 100}, "buffers": files, "remarks": []},
        "events": {event: {"format": format_text(event), "reason": None} for event in EVENTS},
        **{"header_page": HEADER_PAGE, "throttling": []},
        "clock": {"before": {"monotonic_ns": BEGAN}, "after": {"monotonic_ns": ENDED}},
        **more,
    }
