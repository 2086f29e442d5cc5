"""The HTTP server of a task app: authentication, routes, streams, connections and metrics."""
