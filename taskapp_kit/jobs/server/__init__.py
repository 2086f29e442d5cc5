"""A job server: jobs, events, metrics and keys over HTTP, and an engine that sends rollouts to task apps.

Its own engine runs rollouts and updates no weights. Field by field: docs/train/backend.md.
"""
