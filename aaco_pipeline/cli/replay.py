"""`aaco replay`: inspect a dispatch captured on a GPU node, test its addresses, compare two memory states."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.output import data_format, print_json, print_table, say
from aaco_pipeline.errors import CaptureError, UnavailableError
from aaco_pipeline.report.formatting import counted, size

if TYPE_CHECKING:
    from aaco_pipeline.optimization.replay import DispatchCapture, Region

_FOLDER: Final = click.argument("capture", type=click.Path(path_type=Path))
#: Exit codes of rocm-perf-lab's reserve-check; an unreadable capture counts as failed.
_LEGACY: Final = {"exact": 0, "failed": 1, "relocated": 2}
_LISTED: Final = 30


@click.group()
def replay() -> None:
    """Inspect a captured dispatch (rocm-perf-lab's isolate tool, kerncap) and test its addresses."""


@replay.command()
@_FOLDER
@data_format
def inspect(capture: Path, *, as_json: bool) -> int:
    """Show the contents and faults of a captured dispatch.

    Exits with 6 if a fault prevents the dispatch from being replayed.
    """
    from aaco_pipeline.optimization.replay import read_capture

    found = read_capture(capture)
    if as_json:
        print_json(_document(found))
    else:
        _print(found)
    return CaptureError.exit_code if any(one.severity == "fault" for one in found.findings) else 0


@replay.command("reserve-check")
@_FOLDER
@click.option(
    "--granularity", "granularity_bytes", default=4096, metavar="BYTES", show_default=True,
    help="Reservation granularity; the GPU's driver reports its own.",
)  # fmt: skip
@click.option("--legacy-exit-codes", is_flag=True, help="Exit with 0 if exact, 1 if failed, 2 if relocated.")
@data_format
def reserve_check(capture: Path, granularity_bytes: int, *, legacy_exit_codes: bool, as_json: bool) -> int:
    """Try to reserve the captured addresses on this host.

    The test runs in a fresh process and needs no GPU.

    Exits with 0 if all addresses were reserved exactly, 4 if one was relocated or failed, 6 if the capture cannot be
    read.
    """
    from aaco_pipeline.optimization.replay import plan, read_capture
    from aaco_pipeline.resources.address_reservations import outcome, reserve

    try:
        found = read_capture(capture)
    except CaptureError as error:
        if not legacy_exit_codes:
            raise
        say(f"aaco: {error}", err=True)
        return _LEGACY["failed"]
    reserved = reserve(plan(found.regions, granularity_bytes))
    worst = outcome(reserved)
    if as_json:
        print_json(
            {
                **{"outcome": worst, "mode": "host", "granularity_bytes": granularity_bytes},
                "regions": len(found.regions),
                "reserved_bytes": sum(one.reservation.size for one in reserved),
                "reservations": [
                    {
                        "base": one.reservation.base,
                        "size_bytes": one.reservation.size,
                        "regions": [region.base for region in one.reservation.regions],
                        **{"outcome": one.outcome, "at": one.at, "reason": one.reason},
                    }
                    for one in reserved
                ],
            }
        )
    else:
        bad = [one for one in reserved if one.outcome != "exact"]
        print_table(
            ["range", "size", "regions", "outcome"],
            [
                (
                    f"{one.reservation.base:#x}",
                    size(one.reservation.size),
                    str(len(one.reservation.regions)),
                    one.outcome + ("" if one.at is None or one.outcome == "exact" else f" to {one.at:#x}")
                    + (f": {one.reason}" if one.reason else ""),
                )
                for one in (bad or reserved)[:_LISTED]
            ],
            numeric=("size", "regions"),
        )  # fmt: skip
        whole = counted(len(reserved), "address range")
        said = f"{whole} can be had" if not bad else f"{len(bad)} of {whole} cannot be had at the captured address"
        say(f"{worst}: {said} on this host; no GPU was asked")
    if legacy_exit_codes:
        return _LEGACY[worst]
    return 0 if worst == "exact" else UnavailableError.exit_code


@replay.command("diff")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--dtype", metavar="TYPE", help="Also compare values as numbers of this type, such as float32.")
@data_format
def diff(first: Path, second: Path, dtype: str | None, *, as_json: bool) -> int:
    """Show what the kernel wrote: compare the memory of two captures region by region."""
    from aaco_pipeline.optimization.replay import read_capture, region_differences

    found = region_differences(read_capture(first), read_capture(second), dtype)
    other = [one for one in found if one.state != "equal"]
    if as_json:
        print_json({"equal": not other, "dtype": dtype, "regions": [asdict(one) for one in found]})
        return 0
    if other:
        print_table(
            ["region", "size", "state", "bytes", "first at", "elements", "greatest"],
            [
                (
                    f"{one.base:#x}",
                    size(one.size),
                    one.state,
                    _count(one.bytes_differing),
                    None if one.first_offset is None else f"+{one.first_offset:#x}",
                    _count(one.elements_differing),
                    None if one.greatest_difference is None else f"{one.greatest_difference:.6g}",
                )
                for one in other[:_LISTED]
            ],
            numeric=("size", "bytes", "first at", "elements", "greatest"),
        )
    said = f"{len(other)} of {counted(len(found), 'region')} differ" if other else "no region differs"
    say(said + (f"; the first {_LISTED} are listed" if len(other) > _LISTED else ""))
    return 0


def _count(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"


def _document(found: "DispatchCapture") -> dict[str, Any]:
    return {
        "layout": found.layout,
        "dispatch": found.dispatch.model_dump(),
        "workgroups": found.workgroups,
        "registers": found.registers,
        "code_sha256": found.code_sha256,
        "arguments": None if found.slots is None else [one.model_dump() for one in found.slots],
        "pointers": [
            {"name": one.slot.name, "address": one.address, "region": None if one.region is None else one.region.base}
            for one in found.pointers()
        ],
        "regions": [{**one.model_dump(), "file": one.file} for one in found.regions],
        "findings": [asdict(one) for one in found.findings],
    }


def _print(found: "DispatchCapture") -> None:
    dispatch = found.dispatch
    say(f"{dispatch.demangled_name or dispatch.mangled_name}")
    groups, block = (" x ".join(f"{one:,}" for one in extent) for extent in (found.workgroups, dispatch.block))
    say(f"  {groups} workgroups of {block} work-items; dispatch {_or(dispatch.dispatch_index)} of its kernel")
    say(f"  {dispatch.isa_name or 'no ISA is stated'}; captured by {found.layout}")
    lds, scratch = size(dispatch.group_segment_size), size(dispatch.private_segment_size)
    say(f"  LDS {lds} per workgroup, scratch {scratch} per work-item, arguments {size(len(found.kernarg))}")
    pointers = {id(one.slot): one for one in found.pointers()}
    if found.slots:
        print_table(
            ["argument", "kind", "type", "offset", "points into"],
            [
                (
                    one.name or None,
                    one.value_kind,
                    one.value_type or None,
                    str(one.offset),
                    _into(pointers[id(one)].address, pointers[id(one)].region) if id(one) in pointers else None,
                )
                for one in found.slots
                if not one.value_kind.startswith("hidden_")
            ],
            numeric=("offset",),
        )
    print_table(
        ["region", "size", "allocated by"],
        [
            (f"{one.base:#x}", size(one.size), "virtual memory calls" if one.is_vmem else "a memory pool")
            for one in found.regions[:_LISTED]
        ],
        numeric=("size",),
    )
    if len(found.regions) > _LISTED:
        say(f"{len(found.regions) - _LISTED:,} more regions")
    for finding in found.findings:
        say(f"{finding.severity}: {finding.what}")
    if not any(one.severity == "fault" for one in found.findings):
        say("The capture is whole; `aaco replay reserve-check` tries its addresses on this host.")


def _or(index: int | None) -> str:
    return "unknown" if index is None else str(index)


def _into(address: int, region: "Region | None") -> str:
    return "no captured region" if region is None else f"{region.base:#x} + {address - region.base:#x}"
