"""Inspect: apps as its tasks."""
