"""The checkpoints of training jobs: names, crash-safe saving, verified reading, and archives.

Only `state.py` imports torch.
"""
