"""How a backend elsewhere reaches a task app on this machine."""
