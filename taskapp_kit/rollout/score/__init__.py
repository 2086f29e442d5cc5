"""Scores a trajectory. This package plays no episodes, stores nothing and opens no network connections."""
