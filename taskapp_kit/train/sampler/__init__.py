"""Generates tokens, with a model in this process (`TransformersSampler`) or with a vLLM server (`vllm/`)."""

BATCH_SIZE = 32
"""Maximum number of rows in a batch. On a CPU, larger batches sample hardly more tokens per second."""
