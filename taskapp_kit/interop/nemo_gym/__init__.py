"""NeMo Gym: environments as its resource servers."""
