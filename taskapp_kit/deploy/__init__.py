"""Roads: how a task app gets from its author's file to a machine that serves it.

`cargo` says which files travel and which never do, `packages` what is installed there; `modal` does the
driving.
"""
