"""A verdict or a difference as other programs take it: test reports of CI systems, and services that keep series."""
