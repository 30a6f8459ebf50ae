"""Device data: architectures, ceilings, occupancy and counters. Nothing here opens a device."""
