"""Scores a trajectory. Nothing here plays an episode, stores anything, or opens a network connection."""
