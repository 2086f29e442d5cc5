"""Renders conversations as token ids and parses sampled tokens, so that a rollout's tokens are never encoded twice."""
