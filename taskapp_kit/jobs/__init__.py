"""Training jobs: the client, with the configs, and the server."""
