"""Variations of the loop *play, update, repeat*: their settings, and the rewards of turns."""
