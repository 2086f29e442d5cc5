"""The operating system: child Python processes, private files, programs that end with their parent."""
