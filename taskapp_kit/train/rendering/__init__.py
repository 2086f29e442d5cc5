"""Renders conversations as token ids and parses sampled tokens. A rollout's tokens are never encoded twice."""
