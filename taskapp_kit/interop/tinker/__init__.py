"""The Tinker cookbook: apps as environments of the cookbook."""
