"""A booking calendar for the rooms of a house: a week view per room, a day view of all rooms, and forms for bookings."""
