"""Exports stored rollouts for other programs: as JSON lines, Parquet, training data for TRL, or logs for Inspect."""
