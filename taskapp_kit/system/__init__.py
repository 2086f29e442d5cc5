"""The operating system: child Python processes, files that only their owner can read, programs that end with their parent."""
