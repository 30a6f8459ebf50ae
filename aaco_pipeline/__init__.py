"""aaco_pipeline: performance truth for AMD AI compute, as a Dagster code location over a TraceLake."""

__version__ = "0.1.0"
