"""Finds the models that a job can start from or serve by name on this machine, and loads them. No hub is contacted.

Only `loading.py` needs torch.
"""
