"""How a job's rollouts and updates follow each other, beyond *play, update, repeat*: settings, and the rewards of turns."""
