"""One rollout, from the request to the stored result. Its order: docs/contribute/architecture.md. Knows no HTTP server."""
