"""The RL config: a TOML file, its sections and keys, and everything that can be wrong with it."""
