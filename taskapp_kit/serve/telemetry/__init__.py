"""Metrics, traces and log lines of the rollouts that are over."""
