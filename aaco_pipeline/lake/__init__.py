"""The TraceLake: contracts, atomic publishing, reading and SQL, independent of Dagster, formats and analysis."""
