"""TRL: apps as environments of TRL.

For TRL's `rollout_func`, see `train.trl_rollouts`.
"""
