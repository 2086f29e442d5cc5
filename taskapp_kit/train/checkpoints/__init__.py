"""Checkpoints of a training job: their names, crash-safe saving, checked reading, and archives.

Only `state.py` needs torch.
"""
