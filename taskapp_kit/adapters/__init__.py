"""Adapters for environments of other libraries. One module for each; each needs the extra that it names."""
