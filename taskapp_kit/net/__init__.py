"""What crosses HTTP, in either direction: addresses, one request, proxies, redirects, JSON bodies, event streams."""
