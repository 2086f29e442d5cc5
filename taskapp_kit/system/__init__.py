"""Operating system utilities: child processes, private files, and programs that end with their parent."""
