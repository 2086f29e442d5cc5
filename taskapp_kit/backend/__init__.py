"""A job server to talk to: jobs, events, metrics and keys over HTTP, and an engine that drives task apps.

The first engine plays rollouts and updates no weights. Field by field: docs/backend.md.
"""
