"""Evaluations: many rollouts of one app, stored in a directory that can be resumed, and their statistics."""
