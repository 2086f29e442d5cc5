"""One episode of one environment: a generator of events."""
