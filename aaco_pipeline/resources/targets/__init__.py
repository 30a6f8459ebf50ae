"""Targets that build and run a kernel's source: implementations of `aaco_pipeline.optimization.targets.Target`."""
