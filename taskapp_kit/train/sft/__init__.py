"""Fine-tunes a model on conversations, `taskapp train --type sft`, in this process.

sft_settings        the settings in a config
conversations       the conversations of a file, some of them held out, and their rows of an update
sft_job             model, updates, held-out loss and checkpoints of one job
"""
