"""Generates tokens: `TransformersSampler` with a model in this process, `vllm/` with a vLLM server."""

BATCH_SIZE = 32
"""Rows of a batch. On a CPU, larger batches hardly sample more tokens per second."""
