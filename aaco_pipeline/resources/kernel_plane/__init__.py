"""Record Linux kernel events of the measured processes' threads: switches, wake-ups, faults, interrupts, I/O."""
