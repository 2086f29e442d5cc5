"""TRL: apps as its environments and rollout functions."""
