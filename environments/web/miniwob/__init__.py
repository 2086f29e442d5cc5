"""MiniWoB++: 125 small web tasks, on the pages of the third-party package `miniwob`."""
