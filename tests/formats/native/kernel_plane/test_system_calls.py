"""Calls are named by their numbers; the machine's own headers, where they are installed, agree."""

import re
from pathlib import Path

import pytest

from aaco_pipeline.analysis.delays.thread_states import FLUSHES
from aaco_pipeline.formats.native.kernel_plane.system_calls import names_of

#: Where distributions put the header of x86-64 that has the numbers.
HEADERS = (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h"))


@pytest.mark.parametrize(
    ("machine", "numbers"),
    [
        ("x86_64", {0: "read", 16: "ioctl", 74: "fsync", 202: "futex", 262: "newfstatat", 334: "rseq", 435: "clone3"}),
        ("aarch64", {29: "ioctl", 63: "read", 79: "newfstatat", 82: "fsync", 98: "futex", 260: "wait4", 435: "clone3"}),
        ("riscv64", {}),
    ],
)
def test_numbers_are_calls(machine: str, numbers: dict[int, str]) -> None:
    names = names_of(machine)
    assert {number: names[number] for number in numbers} == numbers
    assert len(set(names.values())) == len(names)
    assert set(FLUSHES) <= set(names.values()) or not names


def test_the_header_of_this_machine_says_the_same() -> None:
    header = next((path for path in HEADERS if path.is_file()), None)
    if header is None:
        pytest.skip("NOT CHECKED against the numbers of a header: no asm/unistd_64.h is installed")
    told = {int(number): name for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header.read_text())}
    assert {number: names_of("x86_64").get(number) for number in told} == told
