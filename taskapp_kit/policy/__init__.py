"""Old import paths, kept because the documentation named them."""
