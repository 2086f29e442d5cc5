"""Requests and responses of chat endpoints. Each dialect has one reader and one writer."""
