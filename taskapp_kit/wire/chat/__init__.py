"""Requests and responses of chat endpoints, and their translation to and from other APIs (dialects)."""
