"""The published figures of the Crafter paper's random agent: 29 784 episodes.

The figures are counted from scores/crafter_noreward-random.json in danijar/crafter, which has five runs of one million
steps. The reward of 2.1 ± 1.3 in the table of danijar/crafter is from one episode per seed. It is not the mean of all
episodes.
"""

from typing import Final

from .names import ACHIEVEMENTS
from .score import crafter_score

EPISODES: Final = 29_784
COUNTS: Final = {
    "collect_drink": 2776,
    "collect_sapling": 14947,
    "collect_stone": 4,
    "collect_wood": 7260,
    "defeat_skeleton": 5,
    "defeat_zombie": 41,
    "eat_cow": 112,
    "eat_plant": 2,
    "make_wood_pickaxe": 96,
    "make_wood_sword": 95,
    "place_plant": 13288,
    "place_stone": 3,
    "place_table": 1299,
    "wake_up": 27878,
}
"""How many episodes unlocked each achievement. The other eight achievements were never unlocked."""
RATES: Final = {name: 100 * COUNTS.get(name, 0) / EPISODES for name in ACHIEVEMENTS}
"""The percentage of episodes that unlocked each achievement."""
REWARD: Final = 1.377
REWARD_DEVIATION: Final = 1.222
LENGTH: Final = 167.86
LENGTH_DEVIATION: Final = 44.78
MEDIAN_LENGTH: Final = 165

RANDOM_AGENT: Final = {
    "score_percent": crafter_score(RATES),
    "mean_reward": REWARD,
    "mean_length": LENGTH,
    "median_length": float(MEDIAN_LENGTH),
    "mean_achievements": sum(RATES.values()) / 100,
    **{f"success_percent/{name}": rate for name, rate in RATES.items()},
}
"""The published figures, with the same names as in the aggregate `crafter`."""
