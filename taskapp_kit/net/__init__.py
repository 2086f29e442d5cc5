"""HTTP in both directions: requests, responses, addresses, keys, errors, event streams."""
