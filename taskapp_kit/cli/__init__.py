"""The command line: one file for each command, which parses, makes one call, prints."""
