"""Commands of an app's author: make, look at, play and check one."""
