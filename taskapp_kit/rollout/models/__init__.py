"""Calls of language models: endpoints, credentials, connections, retries, concurrency, responses."""
