"""Renders conversations as token ids and parses what was sampled, so that a rollout's tokens are never encoded twice."""
