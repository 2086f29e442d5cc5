"""The Model Context Protocol: an episode whose actions are the tools of a server."""
