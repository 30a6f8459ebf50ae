"""How close kernels came to what their device can do, by counters or by the model."""
