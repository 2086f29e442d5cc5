"""A scripted player, which decides only from the text of an observation and has no memory between calls.

The inventory and the achievements in the text determine the player's goal. The player goes to the nearest useful
thing in view, and digs if digging makes the path shorter. If nothing useful is in view, the player continues in the
direction that it faces.
"""

import random
from collections.abc import Iterable

from .names import MAX_ACTIONS_PER_CALL
from .sight import ME, OPEN, Place, Sight, beside, read, routes

_PLACEABLE = {"grass", "sand", "path"}


def scripted(observation: str, rng: random.Random) -> dict[str, dict[str, list[str]]]:
    """Return the policy: one call of `interact` with 1 to 8 actions."""
    return {"interact": {"actions": Player(read(observation), rng).decide()}}


class Player:
    """Decides the actions of one call."""

    def __init__(self, sight: Sight, rng: random.Random) -> None:
        self.sight = sight
        self.rng = rng
        self.has = sight.amount
        self.routes = routes(sight.window, self._cost)
        self.foes = sight.places("ZS<>^v")
        self.calm = min((self._gap(foe) for foe in self.foes), default=99) > 3 and not sight.places("!")

    def decide(self) -> list[str]:
        """Return the actions of this call."""
        if self.sight.asleep:
            return ["noop"] * 4
        for rule in (
            self._fight,
            self._drink_or_eat,
            self._rest,
            self._craft,
            self._gather,
            self._explore,
        ):
            if actions := rule():
                return actions[: MAX_ACTIONS_PER_CALL if self.calm else 2]
        return ["noop"]

    # Fighting, eating and resting

    def _fight(self) -> list[str]:
        for foe in self.foes:
            if self.sight.window[foe] in "ZS" and self._gap(foe) == 1:
                return self._use(foe, times=2)
        prey = "Z" if "defeat_zombie" not in self.sight.unlocked and self.has("health") >= 5 else ""
        prey += "S" if "defeat_skeleton" not in self.sight.unlocked and self.has("health") >= 5 else ""
        return self._go_use(prey, limit=5)

    def _drink_or_eat(self) -> list[str]:
        thirst, hunger = 9 - self.has("drink"), 9 - self.has("food")
        if thirst and (actions := self._go_use("~", limit=2 * thirst, times=thirst)):
            return actions
        if hunger and (actions := self._go_use("P", limit=20)):
            return actions
        if "collect_drink" not in self.sight.unlocked and (actions := self._go_use("~")):
            return actions
        if hunger >= 4 or "eat_cow" not in self.sight.unlocked:
            return self._go_use("C", limit=20, times=self._hits("C"))
        return []

    def _rest(self) -> list[str]:
        energy = self.has("energy")
        first = "wake_up" not in self.sight.unlocked
        tired = energy < (8 if first else 5) or (energy < 7 and self.sight.daylight < 0.3)
        if not tired or self.foes:
            return []
        if shelter := self._shelter():
            return shelter
        return ["sleep"] if energy <= (6 if first else 2) and self.has("health") >= 4 else []

    def _shelter(self) -> list[str]:
        """Build a shelter, one stone a call, in the room of one, two or four cells that lacks the fewest stones."""
        best: tuple[int, list[str]] | None = None
        x, y = ME
        rooms = [{ME}, *({ME, place} for place, _ in beside(ME))]
        rooms += [{ME, (x + dx, y), (x, y + dy), (x + dx, y + dy)} for dx in (-1, 1) for dy in (-1, 1)]
        for room in rooms:
            if any(self.sight.window[place] not in OPEN for place in room if place != ME):
                continue
            missing, plan = 0, ["sleep"]
            for place in sorted(room):
                for wall, move in beside(place):
                    if wall in room or self.sight.window[wall] not in OPEN:
                        continue
                    missing += 1
                    steps = self._wall(room, place, wall, move)
                    if steps is None:
                        missing = 99
                    elif len(plan) == 1 or len(steps) < len(plan):
                        plan = steps
            if missing <= self.has("stone") and (best is None or missing < best[0]):
                best = missing, plan
        return best[1] if best else []

    def _wall(self, room: set[Place], place: Place, wall: Place, move: str) -> list[str] | None:
        """Step that put a stone on `wall`: an empty cell can only be faced by walking towards it."""
        if place == ME and self._facing_place() == wall:
            return ["place_stone"]
        behind = (2 * place[0] - wall[0], 2 * place[1] - wall[1])
        if behind not in room:
            return None
        ways = routes(dict.fromkeys(room, "."), lambda _: 1.0)
        return [*self._moves(ways[behind][1]), move, "place_stone"]

    # Crafting and gathering

    def _craft(self) -> list[str]:
        sight, has = self.sight, self.has
        free = sight.ahead in _PLACEABLE
        if has("sapling") and sight.ahead == "grass":
            return ["place_plant"]
        if has("stone") and "place_stone" not in sight.unlocked and (free or sight.ahead in ("water", "lava")):
            return ["place_stone"]
        tools = self._craftable_tools()
        if tools and not sight.near("t"):
            if walk := self._come_near("t", limit=8):
                return walk
            if has("wood") < 4:  # two pieces for the table, and two for the first tools
                return []
            return ["place_table"] if free else self._make_room()
        if any("iron" in tool for tool in tools) and not sight.near("f"):
            return self._come_near("f", limit=4) or self._furnace()
        if tools:
            return [f"make_{tool}" for tool in tools]
        if "place_furnace" not in sight.unlocked:
            return self._furnace()
        return []

    def _craftable_tools(self) -> list[str]:
        """Return the tools that it could make now next to a table (and a furnace)."""
        has = self.has
        spare = {name: has(name) for name in ("wood", "stone", "coal", "iron")}
        if not self.sight.near("t"):
            spare["wood"] -= 2
        tools = []
        for tool, needs in (
            ("wood_pickaxe", ("wood",)),
            ("wood_sword", ("wood",)),
            ("stone_pickaxe", ("wood", "stone")),
            ("stone_sword", ("wood", "stone")),
            ("iron_pickaxe", ("wood", "coal", "iron")),
            ("iron_sword", ("wood", "coal", "iron")),
        ):
            if not has(tool) and all(spare[name] >= 1 for name in needs):
                if tool.startswith("iron") and not self.sight.near("f") and has("stone") < 4:
                    continue
                tools.append(tool)
                for name in needs:
                    spare[name] -= 1
        return tools

    def _furnace(self) -> list[str]:
        if self.has("stone") < 4:
            return []
        return ["place_furnace"] if self.sight.ahead in _PLACEABLE else self._make_room()

    def _make_room(self) -> list[str]:
        """Turn to a cell where something can be placed."""
        for place, move in beside(ME):
            if self.sight.window[place] in OPEN:
                return [move]
        for place, move in beside(ME):
            if self._cost(self.sight.window[place]) is not None:
                return [move, "do"]
        return []

    def _gather(self) -> list[str]:
        sight, has = self.sight, self.has
        if "collect_sapling" not in sight.unlocked and sight.ahead == "grass":
            return ["do"] * 4
        wanted: list[tuple[str, bool, float]] = [
            ("d", has("iron_pickaxe") > 0 and has("diamond") < 1, 30),
            ("i", has("stone_pickaxe") > 0 and has("iron") < 2, 30),
            ("c", has("wood_pickaxe") > 0 and has("coal") < 2, 30),
            ("#", has("wood_pickaxe") > 0 and has("stone") < (2 if has("wood") < 4 else 9), 12),
            ("T", has("wood") < (9 if has("wood_pickaxe") else 4), 12),
        ]
        for symbol, useful, limit in wanted:
            if useful and (actions := self._go_use(symbol, limit=limit)):
                return actions
        if "collect_sapling" not in sight.unlocked:
            return self._go_use(".")
        return []

    def _explore(self) -> list[str]:
        """Go to the edge of the window, preferably straight on."""
        heading = self.sight.facing
        if self.rng.random() < 0.04:
            heading = self.rng.choice([(-1, 0), (1, 0), (0, -1), (0, 1)])
        best: tuple[float, list[Place]] | None = None
        for place, (spent, way) in self.routes.items():
            if place == ME or self._cost(self.sight.window[place]) is None:
                continue
            dx, dy = place[0] - ME[0], place[1] - ME[1]
            onward = dx * heading[0] + dy * heading[1]
            aside = abs(dx * heading[1]) + abs(dy * heading[0])
            value = 3.0 * onward + 0.8 * aside - spent + self.rng.random()
            if best is None or value > best[0]:
                best = value, way
        return self._dig(best[1]) if best else [self.rng.choice(beside(ME))[1], "do"]

    # Moving

    def _cost(self, symbol: str) -> float | None:
        if symbol in OPEN:
            return 1.0
        if symbol == "T":
            return 3.0
        tools = {"#": "wood_pickaxe", "c": "wood_pickaxe", "i": "stone_pickaxe", "d": "iron_pickaxe"}
        if symbol in tools:
            return 2.5 if self.has(tools[symbol]) else None
        return None

    @staticmethod
    def _gap(place: Place) -> int:
        return abs(place[0] - ME[0]) + abs(place[1] - ME[1])

    def _facing_place(self) -> Place:
        return ME[0] + self.sight.facing[0], ME[1] + self.sight.facing[1]

    def _hits(self, symbol: str) -> int:
        force = 5 if self.has("iron_sword") else 3 if self.has("stone_sword") else 2 if self.has("wood_sword") else 1
        return -(-{"C": 3, "Z": 5, "S": 3}.get(symbol, 1) // force)

    @staticmethod
    def _moves(way: list[Place]) -> list[str]:
        places = [ME, *way]
        return [move for here, there in zip(places, way, strict=False) for to, move in beside(here) if to == there]

    def _dig(self, way: list[Place]) -> list[str]:
        """Move along a way, digging through obstacles."""
        actions: list[str] = []
        for place, move in zip(way, self._moves(way), strict=True):
            if self.sight.window[place] not in OPEN:
                actions += [*([] if place == self._facing_place() else [move]), "do"]
            actions.append(move)
        return actions

    def _use(self, place: Place, times: int) -> list[str]:
        """Go next to a place, faces it and acts on it."""
        way = self.routes[place][1]
        actions = self._dig(way[:-1])
        if not (len(way) == 1 and place == self._facing_place()):
            actions.append(self._moves(way)[-1])
        return [*actions, *["do"] * times]

    def _nearest(self, symbols: Iterable[str], limit: float) -> Place | None:
        known = [(self.routes[place][0], place) for place in self.sight.places(symbols) if place in self.routes]
        reachable = [entry for entry in known if entry[0] <= limit and entry[1] != ME]
        return min(reachable)[1] if reachable else None

    def _go_use(self, symbols: str, *, limit: float = 99, times: int = 1) -> list[str]:
        place = self._nearest(symbols, limit)
        return self._use(place, times) if place else []

    def _come_near(self, symbol: str, limit: float) -> list[str]:
        """Walk until a table or furnace is within reach."""
        place = self._nearest(symbol, limit)
        if place is None:
            return []
        way = self.routes[place][1][:-1]
        return self._dig(way)
