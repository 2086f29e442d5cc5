"""Commands that serve an app or play it once, and the keys of servers."""
