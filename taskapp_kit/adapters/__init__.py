"""Deliveries: environments of others, made into ours. One module for each; each needs the extra that it names."""
