"""The model's nodes: how much work each is, and which kernels worked for it."""
