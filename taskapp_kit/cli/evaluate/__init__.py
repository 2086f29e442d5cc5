"""Commands that play many rollouts, and those that read stored ones."""
