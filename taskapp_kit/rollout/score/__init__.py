"""A trajectory becomes a scorecard. Nothing here plays, stores, or calls over a network."""
