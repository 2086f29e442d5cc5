"""What travels to a container: source files, requirements, the kit as a wheel."""
