"""Metrics, traces and log lines of ended rollouts."""
