"""What NVIDIA's own tools write: counters of Nsight Compute, and the streams of the library that is injected."""
