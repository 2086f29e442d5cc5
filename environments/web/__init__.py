"""Sites that agents use in a real browser. README.md in this directory describes them."""
