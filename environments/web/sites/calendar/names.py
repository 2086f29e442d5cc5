"""Names, and parts of names, for houses, rooms, people and bookings."""

HOUSES = ("Fernlow", "Alderbeck", "Copperlea", "Marrowfield", "Thistlegate", "Windmere", "Hollowby", "Quillstone")
ROOMS = (
    "Larch", "Heron", "Otter", "Quarry", "Beacon", "Juniper", "Kestrel", "Lantern",
    "Meadow", "Pebble", "Saffron", "Harbour", "Linnet", "Orchard",
)  # fmt: skip
ROOM_ENDINGS = ("Room", "Hall", "Study", "Loft")
FLOORS = ("Ground floor", "First floor", "Second floor")
EQUIPMENT = ("projector", "whiteboard", "video screen", "piano", "flip chart", "sound system")
FIRST_NAMES = (
    "Ines", "Tobias", "Maren", "Oskar", "Leila", "Bruno", "Hedda", "Joaquin", "Nora", "Silas",
    "Petra", "Anselm", "Yara", "Casper", "Ottilie", "Rafe",
)  # fmt: skip
LAST_NAMES = (
    "Marlowe", "Fennick", "Ashgrove", "Tindall", "Okonjo", "Velasco", "Brandvik", "Corley",
    "Dunmore", "Hasselby", "Lindqvist", "Pellworth", "Sarrano", "Whitlock", "Zemanek", "Yarrow",
)  # fmt: skip
TOPICS = (
    "Budget", "Garden", "Archive", "Harvest", "Festival", "Newsletter", "Safety", "Volunteer",
    "Library", "Kitchen", "Website", "Trail", "Choir", "Pottery",
)  # fmt: skip
FORMS = ("meeting", "review", "workshop", "briefing", "planning")
NOTES = (
    "Please set out water.",
    "Chairs in a circle.",
    "Keys are at the front desk.",
    "Guests arrive ten minutes early.",
    "Close the windows afterwards.",
)
