"""NeMo Gym: environments as NeMo Gym's resources servers."""
