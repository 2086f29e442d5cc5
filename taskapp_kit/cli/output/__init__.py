"""What commands print: the terminal, tables, and each kind of result."""
