"""Where a kernel's source is built and run: implementations of `aaco_pipeline.optimization.targets.Target`."""
