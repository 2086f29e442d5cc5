"""Selects the contents of a container: source files, requirements, and the kit as a wheel."""
