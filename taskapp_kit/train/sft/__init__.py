"""Fine-tunes a model on conversations in this process, for `taskapp train --type sft`.

sft_settings        the settings in a config
conversations       reads and filters conversations, holds some out, and converts them to rows
sft_job             the model, updates, held-out loss and checkpoints of one job
"""
