"""Other frameworks, a package each: what serves an app to them, what imports from them, and what is generated for them."""
