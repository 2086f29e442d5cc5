"""The viewer: web pages that show rollouts at `/ui` of a server or with `taskapp view`, and self-contained HTML files."""
