"""A vLLM server as the sampler of a job: `VllmSampler`, over a child of the trainer or a running server.

`place.py` reads its location, `vllm_child.py` starts it, `wire.py` sends its requests, `vllm_sampler.py` samples and writes
weights for it.
"""
