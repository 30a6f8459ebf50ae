"""Pure functions from tables to results. They use no Dagster, no clock and no files."""
