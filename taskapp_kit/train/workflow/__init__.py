"""Parts of a workflow as services."""
