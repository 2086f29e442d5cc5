"""Renders conversations as token ids and parses sampled tokens. The text of sampled tokens is never encoded again."""
