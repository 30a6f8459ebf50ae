"""Records what the kernel does with the measured processes' threads: switches, wake-ups, faults, interrupts, I/O."""
