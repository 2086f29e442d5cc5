"""HTTP for clients and servers: requests, responses, addresses, keys, errors and event streams."""
