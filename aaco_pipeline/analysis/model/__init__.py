"""The model's nodes: their work, and the kernels that executed them."""
