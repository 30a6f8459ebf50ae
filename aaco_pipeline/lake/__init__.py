"""The TraceLake: contracts, atomic publishing, reading and SQL. It knows nothing of Dagster, formats or analysis."""
