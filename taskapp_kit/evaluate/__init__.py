"""The tasting room: many rollouts of one app, kept in a directory that can be taken up again, and what they come to."""
