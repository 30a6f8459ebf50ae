"""Feed every reader with damaged captures, and look for anything but a reading or the documented error.

Each input is a real or generated capture with a few random changes: flipped, lost, repeated or foreign bytes, extreme
numbers, a cut end. A reader may give a reading that fulfils every contract, or raise CaptureError; it may not raise
anything else, take longer than `--slowest` seconds, or grow the process above `--memory` MiB. Run as
`python benchmarks/fuzz_readers.py --seconds 600`; it exits with 1 and keeps the input when one breaks the promise.
"""

import argparse
import gzip
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from aaco_pipeline.capture.discovery import Part, discover_runs
from aaco_pipeline.capture.merging import NamedReading, merge_parts
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.validation import conform

SHARED: Final = Path(os.environ.get("AACO_SHARED") or Path(__file__).parents[2] / "shared")
KEY: Final = "20260101T000000Z-00000000"
#: What the captures are taken from; the larger ones of a kind would only make fewer inputs of it.
SEEDS: Final = (
    "captures/mi300x_rocpd_pmc_passes/pass_4_DERIVED_results.db",
    "captures/gfx1250_rocpd/146104_results.redacted.db",
    "captures/documentation_csv",
    "captures/mi350x_rocprofv3_json",
    "captures/gfx1151_rocprofv3_csv/decode_kernel_trace.csv",
    "captures/gfx1151_rocprofv3_csv/decode_fetch_counter_collection.csv",
    "captures/mi300x_att_ck_batched_gemm/ui_output_agent_5600_dispatch_1",
    "captures/mi300_pc_sampling_code_json",
    "captures/mi210_kineto_gpu_only",
    "kineto/a100_event_sync.json.gz",
    "gpu_sessions/traces/two_streams_overlap.json.gz",
    "counters/vcopy/MI300X_A1",
    "counters/mem_levels_HBM/MI200",
    "counters/laplacian_k1/MI250X",
)
EXTREMES: Final = (
    b"-1",
    b"0",
    b"18446744073709551615",
    b"9223372036854775808",
    b"1e400",
    b"NaN",
    b"null",
    b'"',
    b"[",
    b"{",
)


def changed(content: bytes, chance: random.Random) -> bytes:
    """The content with one to eight random changes."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        if not data:
            break
        at = chance.randrange(len(data))
        kind = chance.randrange(7)
        if kind == 0:
            data[at] = chance.randrange(256)
        elif kind == 1:
            del data[at : at + chance.randint(1, 64)]
        elif kind == 2:
            data[at:at] = data[at : at + chance.randint(1, 256)]
        elif kind == 3:
            data[at:at] = chance.randbytes(chance.randint(1, 16))
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            data[at : at + 4] = chance.choice(EXTREMES)
        else:
            digit = next((i for i in range(at, min(at + 4096, len(data))) if 48 <= data[i] <= 57), None)
            if digit is not None:
                data[digit : digit + 1] = chance.choice(EXTREMES)
    return bytes(data)


def damaged(part: Part, folder: Path, chance: random.Random) -> Path:
    """A copy of the part's files below `folder`, one of them changed; what to survey."""
    top = Path(os.path.commonpath([file.parent for file in part.files]))
    victim = chance.choice(part.files)
    for file in part.files:
        target = folder / top.name / file.relative_to(top)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file != victim:
            shutil.copyfile(file, target)
            continue
        content = file.read_bytes()
        if content[:2] == b"\x1f\x8b" and chance.random() < 0.9:  # damage within is rarer found than in the packing
            target.write_bytes(gzip.compress(changed(gzip.decompress(content), chance), 1))
        else:
            target.write_bytes(changed(content, chance))
    return folder / top.name


def outcome(place: Path) -> str:
    """What became of the input; raises what a reader must not raise."""
    try:
        for run in discover_runs(place).runs:
            readings = [NamedReading(part.name, part.read(Limits())) for part in run.parts]
            for name, frame in merge_parts(readings).tables.items():
                conform(contract(name), frame, KEY)
            return "read"
    except CaptureError as error:
        assert str(error) and "\n" not in str(error), f"not one line: {error!r}"
        return "refused"
    return "not recognized"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--slowest", type=float, default=20.0)
    parser.add_argument("--memory", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    parts = [part for seed in SEEDS for run in discover_runs(SHARED / seed).runs for part in run.parts]
    until = time.monotonic() + arguments.seconds
    counts: dict[str, Counter[str]] = {}
    slowest: dict[str, float] = {}
    number = 0
    while time.monotonic() < until:
        part = parts[number % len(parts)]
        chance = random.Random(f"{arguments.seed}:{number}")
        number += 1
        with tempfile.TemporaryDirectory() as name:
            place = damaged(part, Path(name), chance)
            started = time.monotonic()
            try:
                told = outcome(place)
            except BaseException as error:  # noqa: BLE001  (whatever it is, it is the finding)
                kept = Path(tempfile.mkdtemp(prefix="aaco_fuzz_")) / place.name
                shutil.copytree(place, kept)
                print(f"{part.format}, input {number - 1}: {type(error).__name__}: {str(error)[:300]}; kept in {kept}")
                return 1
            taken = time.monotonic() - started
        counts.setdefault(part.format, Counter())[told] += 1
        slowest[part.format] = max(slowest.get(part.format, 0.0), taken)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        if taken > arguments.slowest or peak > arguments.memory:
            print(f"{part.format}, input {number - 1}: {taken:.1f} s, {peak} MiB at most")
            return 1
    print(f"{'format':<26}{'read':>8}{'refused':>9}{'unknown':>9}{'slowest s':>11}")
    for kind, count in sorted(counts.items()):
        row = (count["read"], count["refused"], count["not recognized"], slowest[kind])
        print(f"{kind:<26}{row[0]:8,}{row[1]:9,}{row[2]:9,}{row[3]:11.2f}")
    print(f"{number:,} inputs in {arguments.seconds:.0f} s, {peak} MiB at most, nothing but readings and CaptureError")
    return 0


if __name__ == "__main__":
    sys.exit(main())
