"""Stored rollouts as files that others read: JSON lines, Parquet, training data for TRL, logs of Inspect."""
