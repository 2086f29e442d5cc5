"""A job server: jobs, events, metrics and keys over HTTP, and an engine that sends rollouts to task apps.

The built-in engine runs rollouts but does not update weights. docs/train/backend.md documents every field of
requests and responses.
"""
