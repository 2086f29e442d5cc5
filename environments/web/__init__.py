"""Sites to act on in a real browser. README.md beside this file has the details."""
