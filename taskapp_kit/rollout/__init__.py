"""One rollout, from the request to the stored result, without HTTP. docs/contribute/architecture.md explains the modules."""
