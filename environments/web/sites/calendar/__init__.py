"""A booking calendar: the rooms of a house, a week view of each, a day view of all, and bookings made and changed."""
