"""Tunnels through which a remote backend reaches a task app on this machine."""
