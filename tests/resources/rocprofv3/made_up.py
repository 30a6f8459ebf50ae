"""What the tests of rocprofv3 make up: a kernel trace of chosen executions, the GPUs of a host."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.resources.rocprofv3 import command as driver

#: Releases that write text files and have no thread trace.
OLD: Final = ("6.2", "6.3", "6.4")
KERNEL_CSV: Final = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X",'
    '"Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
)


def kernel_csv(*executions: tuple[str, int]) -> str:
    """A kernel trace of those executions: name and duration in ns, one after the other."""
    rows = [
        f'"KERNEL_DISPATCH",1,1,100,{n},{1 + len(name)},"{name}",{n},{n * 10_000},{n * 10_000 + duration},'
        "0,0,64,1,1,64,1,1"
        for n, (name, duration) in enumerate(executions, start=1)
    ]
    return KERNEL_CSV + "\n".join(rows) + "\n"


def listed_gpus(targets: Sequence[int], nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver lists: one node for each number, 0 for a processor."""
    for number, target in enumerate(targets):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "properties").write_text(f"simd_count 4\ngfx_target_version {target}\nvendor_id 4098\n")
    monkeypatch.setattr(driver, "_KFD_NODES", nodes)
