"""Why an iteration took longer: what the kernel did with its threads, and how quiet the machine was."""
