"""Guards that refuse a candidate before it runs: by its text, its object file, and its use of GPU resources."""
