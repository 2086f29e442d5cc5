"""Updates a policy's weights with training rows: `PolicyUpdate.train_step`."""
