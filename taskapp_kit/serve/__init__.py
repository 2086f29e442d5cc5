"""The front entrance: keys, bodies, routes and the one place that knows HTTP statuses."""
