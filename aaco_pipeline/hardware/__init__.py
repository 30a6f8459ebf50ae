"""What a device can do, as data: architectures, their ceilings and their occupancy. No Dagster, no clock, no device."""
