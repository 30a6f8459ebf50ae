"""The targets `cuda` and `amd`: device code alone is built, and launched from a fresh process over the driver's API."""
