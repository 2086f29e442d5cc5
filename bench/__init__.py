"""The bench: budgets measured as ratios in one run, beside peers, written to docs/operate/performance.md by `make bench`."""
