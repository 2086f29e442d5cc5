"""Where episodes run: pinned threads, and a pool of child processes."""
