"""Pure functions from tables to answers. No Dagster, no clock, no files."""
