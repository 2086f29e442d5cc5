"""Task apps that run inside the program that trains on them."""
