"""Kernels to try the loop on: a `.hip` source and its harness each. `aaco optimize --samples FOLDER` copies them."""
