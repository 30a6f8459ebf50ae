"""What kernels' names say, and what each kernel took."""
