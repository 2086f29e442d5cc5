"""The output of commands: the console, tables, and each kind of result."""
