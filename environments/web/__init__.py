"""Sites to act on in a real browser. README.md in this directory has the details."""
