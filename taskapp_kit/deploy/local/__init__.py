"""A task app inside the program that trains on it."""
