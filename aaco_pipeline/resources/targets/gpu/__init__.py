"""The targets `cuda` and `amd`: only device code is built; a fresh process launches it with the driver's API."""
