"""A vLLM server as the sampler of a job: `VllmSampler`, over a child of the trainer or a server that is there.

`place.py` says where it is, `vllm_child.py` starts it, `wire.py` has its requests, `vllm_sampler.py` writes weights as it
reads them.
"""
