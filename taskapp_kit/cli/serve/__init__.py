"""Commands that serve an app, play it once, or manage the keys of servers."""
