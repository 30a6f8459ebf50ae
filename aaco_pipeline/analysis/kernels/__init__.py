"""Names and times of kernels."""
