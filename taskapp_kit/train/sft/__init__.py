"""Fine-tunes a model on conversations, `taskapp train --type sft`, in this process.

settings            what a config says, beside the conversations
conversations       lines of a file that fit the model, some of them held out, and their rows of an update
sft_job             model, updates, held-out loss and checkpoints of one job
"""
