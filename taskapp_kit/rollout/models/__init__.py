"""Calls to language models: endpoints, credentials, connections, retries, concurrency and responses."""
