"""Commands that play many rollouts, and commands that read stored rollouts."""
