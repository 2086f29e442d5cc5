"""Checkpoints of a training job: named, saved so that a kill at any moment loses none, checked when read, archived.

Only `state.py` needs torch.
"""
