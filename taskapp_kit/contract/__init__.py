"""The ledger: plain data that every room may hold, and the protocols by which rooms meet."""
