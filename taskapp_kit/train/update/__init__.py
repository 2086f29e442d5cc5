"""Updates a policy's weights from training rows: `PolicyUpdate.train_step`."""
