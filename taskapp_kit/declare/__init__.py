"""The drawing room: what an author writes becomes frozen, checked specs."""
