"""Operating system utilities: child processes, private files, programs that end with their parent."""
