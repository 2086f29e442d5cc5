"""The scales: a trajectory becomes a scorecard. Nothing here plays, stores or asks over a network."""
