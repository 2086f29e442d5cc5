"""The HTTP contract: what requests and answers contain."""
