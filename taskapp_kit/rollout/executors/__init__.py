"""The threads and child processes in which episodes run."""
