"""Collects the declarations of a task app, checks them, and freezes them into specs."""
