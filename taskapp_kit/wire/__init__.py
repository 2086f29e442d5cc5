"""The HTTP contract: the fields of requests and responses."""
