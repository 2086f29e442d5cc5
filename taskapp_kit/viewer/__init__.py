"""The viewer: web pages of rollouts, at `/ui` of a server and by `taskapp view`, and self-contained HTML files."""
