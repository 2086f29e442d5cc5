"""TRL: apps as its environments. Its rollout functions, which sample themselves, are `train.trl_rollouts`."""
