"""TRL: apps as environments of TRL.

`train.trl_rollouts` contains the rollout functions for TRL, which sample themselves.
"""
