# Follows data.yaml of the package crafter 1.8.3. Copyright (c) 2021 Danijar Hafner, MIT License: see THIRD_PARTY.md.
"""The names of Crafter: actions, achievements, vitals, items, materials, and costs.

The names are copied from the data file of the `crafter` package 1.8.3, because task information must be available
even if the package is not installed. A test compares every table with the data file.
"""

from typing import Final, Literal, get_args

ActionName = Literal[
    "noop",
    "move_left",
    "move_right",
    "move_up",
    "move_down",
    "do",
    "sleep",
    "place_stone",
    "place_table",
    "place_furnace",
    "place_plant",
    "make_wood_pickaxe",
    "make_stone_pickaxe",
    "make_iron_pickaxe",
    "make_wood_sword",
    "make_stone_sword",
    "make_iron_sword",
]
"""The 17 actions, in the order of the published action space (0 to 16)."""

ACTIONS: Final[tuple[str, ...]] = get_args(ActionName)
KEYS: Final[dict[str, ActionName]] = {
    "w": "move_up",
    "a": "move_left",
    "s": "move_down",
    "d": "move_right",
    "ArrowUp": "move_up",
    "ArrowLeft": "move_left",
    "ArrowDown": "move_down",
    "ArrowRight": "move_right",
    " ": "do",
    "z": "sleep",
    "r": "place_stone",
    "t": "place_table",
    "f": "place_furnace",
    "p": "place_plant",
    "1": "make_wood_pickaxe",
    "2": "make_stone_pickaxe",
    "3": "make_iron_pickaxe",
    "4": "make_wood_sword",
    "5": "make_stone_sword",
    "6": "make_iron_sword",
    "n": "noop",
}
"""Browser names of keys: the keys of the package's `run_gui` and the arrow keys, but not Tab, which browsers need."""
MAX_ACTIONS_PER_CALL: Final = 8
DEFAULT_LENGTH: Final = 10_000
"""Steps after which the published game stops an episode."""

ACHIEVEMENTS: Final = (
    "collect_coal",
    "collect_diamond",
    "collect_drink",
    "collect_iron",
    "collect_sapling",
    "collect_stone",
    "collect_wood",
    "defeat_skeleton",
    "defeat_zombie",
    "eat_cow",
    "eat_plant",
    "make_iron_pickaxe",
    "make_iron_sword",
    "make_stone_pickaxe",
    "make_stone_sword",
    "make_wood_pickaxe",
    "make_wood_sword",
    "place_furnace",
    "place_plant",
    "place_stone",
    "place_table",
    "wake_up",
)
"""The 22 achievements, in the package's order."""

VITALS: Final = ("health", "food", "drink", "energy")
ITEMS: Final = (
    "sapling",
    "wood",
    "stone",
    "coal",
    "iron",
    "diamond",
    "wood_pickaxe",
    "stone_pickaxe",
    "iron_pickaxe",
    "wood_sword",
    "stone_sword",
    "iron_sword",
)
MAX_AMOUNT: Final = 9
"""The maximum of every vital and every item. The minimum is 0."""

MATERIALS: Final = (
    "water",
    "grass",
    "stone",
    "path",
    "sand",
    "tree",
    "lava",
    "coal",
    "iron",
    "diamond",
    "table",
    "furnace",
)
"""The materials of the ground, in the package's order. The id of a material is its index in this tuple plus one."""

DIRECTIONS: Final = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
"""(dx, dy) by direction. y increases downwards."""

COSTS: Final[dict[str, dict[str, int]]] = {
    "place_stone": {"stone": 1},
    "place_table": {"wood": 2},
    "place_furnace": {"stone": 4},
    "place_plant": {"sapling": 1},
    "make_wood_pickaxe": {"wood": 1},
    "make_stone_pickaxe": {"wood": 1, "stone": 1},
    "make_iron_pickaxe": {"wood": 1, "coal": 1, "iron": 1},
    "make_wood_sword": {"wood": 1},
    "make_stone_sword": {"wood": 1, "stone": 1},
    "make_iron_sword": {"wood": 1, "coal": 1, "iron": 1},
}
"""The items that each action uses up, from the package's code. Prompts published elsewhere state other numbers."""

PREREQUISITES: Final[dict[str, tuple[str, ...]]] = {
    "collect_drink": (),
    "collect_sapling": (),
    "collect_wood": (),
    "defeat_skeleton": (),
    "defeat_zombie": (),
    "eat_cow": (),
    "wake_up": (),
    "place_plant": ("collect_sapling",),
    "eat_plant": ("place_plant",),
    "place_table": ("collect_wood",),
    "make_wood_pickaxe": ("place_table", "collect_wood"),
    "make_wood_sword": ("place_table", "collect_wood"),
    "collect_stone": ("make_wood_pickaxe",),
    "collect_coal": ("make_wood_pickaxe",),
    "place_stone": ("collect_stone",),
    "place_furnace": ("collect_stone",),
    "make_stone_pickaxe": ("place_table", "collect_wood", "collect_stone"),
    "make_stone_sword": ("place_table", "collect_wood", "collect_stone"),
    "collect_iron": ("make_stone_pickaxe",),
    "make_iron_pickaxe": ("place_table", "place_furnace", "collect_wood", "collect_coal", "collect_iron"),
    "make_iron_sword": ("place_table", "place_furnace", "collect_wood", "collect_coal", "collect_iron"),
    "collect_diamond": ("make_iron_pickaxe",),
}
"""The preconditions of each achievement in the rules. `defeat_skeleton` has none, although skeletons live in tunnels."""
