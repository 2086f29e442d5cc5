"""Requests and answers of chat endpoints: one reader and one writer of each dialect."""
