"""The bench: budgets measured as ratios in one run, beside peers, written to docs/performance.md by `make bench`."""
