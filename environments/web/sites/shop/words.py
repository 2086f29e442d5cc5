"""Words from which the shop's content is built. Names of product lines, people, streets and towns are fictional."""

LINES = (
    ("Halvick", "Halvock"),
    ("Torvane", "Torvene"),
    ("Ellmire", "Ellmore"),
    ("Brindlo", "Brindla"),
    ("Quessa", "Quesso"),
    ("Merrowin", "Merrowen"),
    ("Oskarn", "Oskern"),
    ("Pellandra", "Pellindra"),
    ("Dunmavi", "Dunmavo"),
    ("Straithe", "Straithy"),
    ("Kovelle", "Kovella"),
    ("Yarrick", "Yarrock"),
)
"""Names of product lines, in pairs that are easily confused."""

SUFFIXES = ("Mini", "Plus", "Duo", "Classic")

CATEGORIES = {
    "Lamps": (("desk lamp", "floor lamp", "reading lamp", "wall lamp"), ("brass", "oak", "steel", "glass", "linen")),
    "Mugs": (
        ("tea mug", "soup mug", "travel mug", "breakfast mug"),
        ("stoneware", "porcelain", "enamel", "glass", "bamboo"),
    ),
    "Blankets": (
        ("sofa throw", "picnic blanket", "bed cover", "crib blanket"),
        ("wool", "cotton", "linen", "fleece", "alpaca"),
    ),
    "Bags": (("backpack", "shoulder bag", "weekend bag", "tool bag"), ("canvas", "leather", "felt", "nylon", "hemp")),
    "Chairs": (
        ("kitchen chair", "rocking chair", "folding chair", "bar stool"),
        ("oak", "beech", "steel", "rattan", "walnut"),
    ),
    "Clocks": (
        ("wall clock", "mantel clock", "alarm clock", "station clock"),
        ("brass", "birch", "steel", "cork", "slate"),
    ),
}
"""The nouns and the materials of each category."""

COLOURS = ("red", "blue", "green", "grey", "yellow", "black", "white")

SIZES = ("small", "medium", "large")

FIRST_NAMES = ("Mira", "Jonas", "Tilda", "Rufus", "Anouk", "Casper", "Leonie", "Ivo", "Petra", "Silas", "Nadia", "Emil")

LAST_NAMES = ("Oldham", "Farrow", "Brandt", "Kessler", "Whitlow", "Marsh", "Tarrant", "Ekholm", "Varga", "Penrose")

STREETS = ("Fern Row", "Mill Lane", "Heron Street", "Quarry Road", "Linden Walk", "Cooper Yard", "Tansy Street")

TOWNS = ("Calderby", "Wexmoor", "Astonleigh", "Brackwell", "Stanmere", "Holtwick", "Ravensby")

MESSAGES = (
    "Happy birthday from all of us",
    "With thanks for the summer",
    "For the new flat, with love",
    "Well done, see you in May",
    "Get well soon",
)
