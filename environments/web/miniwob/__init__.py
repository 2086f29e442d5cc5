"""MiniWoB++: 125 small web tasks by others, on the pages of the package `miniwob`."""
