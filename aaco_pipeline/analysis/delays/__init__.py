"""Why an iteration took longer: what the kernel did with its threads, part by part, and how quiet the machine was."""
