"""Finds models on this machine by name, to start a job from them or to serve them. No model hub is contacted.

Only `loading.py` imports torch.
"""
