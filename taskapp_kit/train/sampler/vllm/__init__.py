"""`VllmSampler`, which samples with a vLLM server. The server is a child process of the trainer, or already running.

`place.py` reads the server's location, `vllm_child.py` starts a server, `wire.py` sends requests, and `vllm_sampler.py`
samples and writes weights.
"""
