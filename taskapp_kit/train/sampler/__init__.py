"""Generates tokens with a transformers model in this process: `TransformersSampler`."""
