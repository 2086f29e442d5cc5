"""Turns an author's declarations into frozen, checked specs."""
