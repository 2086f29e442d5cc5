"""Commands for the author of an app: create it, inspect it, play it and check it."""
