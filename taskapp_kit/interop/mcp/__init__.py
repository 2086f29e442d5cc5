"""The Model Context Protocol: an episode as a server's tools."""
