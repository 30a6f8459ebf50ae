"""The tracepoints that are asked for, each alone: one that a kernel lacks or refuses costs no other.

What each becomes is `aaco_pipeline.formats.native.kernel_plane`.
"""

import re
from typing import Final

#: How much memory a process has changes as the last step of a fault: the kernel has no event of its return.
FAULT_END: Final = "kmem/rss_stat"
#: Kernels before this one count memory in batches, at the beginning of a later fault.
_COUNTS_AT_ONCE: Final = (6, 2)
#: Of the measured threads alone, and of what interrupts them.
OF_THREADS: Final = (
    *(
        "sched/sched_stat_runtime",
        "sched/sched_waking",
        "sched/sched_migrate_task",
        "sched/sched_process_fork",
        "sched/sched_process_exit",
    ),
    *("exceptions/page_fault_user", "exceptions/page_fault_kernel", FAULT_END),
    *("irq/irq_handler_entry", "irq/irq_handler_exit", "irq/softirq_entry", "irq/softirq_exit"),
    *(
        f"irq_vectors/{vector}_{side}"
        for vector in ("local_timer", "reschedule", "call_function", "call_function_single", "irq_work", "thermal_apic")
        for side in ("entry", "exit")
    ),
    *("raw_syscalls/sys_enter", "raw_syscalls/sys_exit"),
    *("block/block_rq_issue", "signal/signal_deliver"),
)
#: Of all CPUs: who had them is known by every switch, and how fast they ran.
OF_CPUS: Final = ("sched/sched_switch", "power/cpu_frequency")
#: What the drivers of GPUs say of themselves, where they are loaded: jobs, page tables, buffers, waits for fences.
OF_GPUS: Final = (
    *("amdgpu/amdgpu_cs_ioctl", "amdgpu/amdgpu_sched_run_job", "amdgpu/amdgpu_vm_bo_update"),
    *("amdgpu/amdgpu_vm_flush", "amdgpu/amdgpu_bo_move", "amdgpu/amdgpu_iv"),
    *("gpu_scheduler/drm_sched_job_queue", "gpu_scheduler/drm_sched_job_run", "gpu_scheduler/drm_sched_job_done"),
    *("dma_fence/dma_fence_wait_start", "dma_fence/dma_fence_wait_end"),
)


def misleading(release: str) -> dict[str, str]:
    """The events that do not say on a kernel of this release (as `uname -r` has it) what is read from them, and why."""
    known = re.match(r"(\d+)\.(\d+)", release)
    if known is not None and (int(known[1]), int(known[2])) >= _COUNTS_AT_ONCE:
        return {}
    return {FAULT_END: "not asked for: only since Linux 6.2 it says when a fault is over"}
