"""The contents of a container: source files, requirements, the kit as a wheel."""
