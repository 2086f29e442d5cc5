"""Crafter as a task app: the published game, made reproducible and fast.

`names`, `score`, `view` and `scripted` are plain Python; `rules` loads the `crafter` package.
"""
