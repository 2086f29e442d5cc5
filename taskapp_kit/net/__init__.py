"""Everything that crosses HTTP, in either direction: requests sent and received, addresses, keys, errors, event streams."""
