"""Sample host, process and GPUs during a run."""
