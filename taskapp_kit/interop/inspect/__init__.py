"""Inspect: apps as Inspect tasks."""
