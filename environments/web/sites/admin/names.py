"""Fictional names of companies, towns, depots, people and machines."""

from __future__ import annotations

import random

_BEGINNINGS = ("Bran", "Cal", "Dor", "El", "Fen", "Gar", "Hal", "Ing", "Kel", "Lor", "Mar", "Nor", "Or", "Pel", "Quin")
_MIDDLES = ("a", "e", "i", "o", "un", "er", "ol", "im", "ar")
_ENDS = ("bick", "dane", "fell", "gard", "lum", "mond", "nock", "ris", "stow", "tave", "vern", "wick", "zell")
_TRADES = ("Builders", "Gardens", "Roofing", "Farm", "Paving", "Drainage", "Events", "Joinery")
_FIRST = ("Adda", "Benno", "Corin", "Delia", "Edvin", "Fanna", "Gerlo", "Hanne", "Ivo", "Jutta", "Kasim", "Leoni")

DEPOTS = ("North Gate", "South Quay", "East Mill", "West Field")
TYPES = ("Pump", "Mixer", "Crane", "Digger", "Saw", "Roller", "Drill", "Loader")


def word(random_: random.Random) -> str:
    """Return a capitalised word that means nothing, such as `Fenolgard`."""
    return random_.choice(_BEGINNINGS) + random_.choice(_MIDDLES) + random_.choice(_ENDS)


def distinct_words(random_: random.Random, count: int) -> list[str]:
    """Draw distinct words, none of which contains another, so that a search finds only one."""
    found: list[str] = []
    while len(found) < count:
        new = word(random_)
        if all(new not in old and old not in new for old in found):
            found.append(new)
    return found


def companies(random_: random.Random, count: int) -> list[str]:
    """Draw distinct names of companies."""
    return [f"{name} {random_.choice(_TRADES)}" for name in distinct_words(random_, count)]


def people(random_: random.Random, count: int) -> list[str]:
    """Draw distinct names of people."""
    firsts = random_.sample(_FIRST, count)
    return [f"{first} {last}" for first, last in zip(firsts, distinct_words(random_, count), strict=True)]
