"""Plain data types shared by every package, and the protocols through which packages work together."""
