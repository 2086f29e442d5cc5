"""The Tinker cookbook: apps as its environments."""
