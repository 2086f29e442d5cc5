"""pass@k and pass^k: how often at least one of k samples of a seed passes, and how often all k do.

Of n samples of one seed, c passed. Both estimators are unbiased: they are the shares of all subsets of k of the n samples.

    pass@k = 1 − C(n − c, k) / C(n, k)    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv:2107.03374
    pass^k = C(c, k) / C(n, k)            Yao et al. 2024, "τ-bench", arXiv:2406.12045
"""

from __future__ import annotations

import math
from array import array

from taskapp_kit.records.content import Json
from taskapp_kit.records.statistics import clustered_standard_error

PASS_AT = 1.0
EVERY_K_UP_TO = 8


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The probability that at least one of k samples passes. Raises ValueError: k is not in [1, samples]."""
    _check(samples, passed, k)
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def pass_hat_k(samples: int, passed: int, k: int) -> float:
    """The probability that k samples all pass (pass^k). Raises ValueError: k is not in [1, samples]."""
    _check(samples, passed, k)
    return math.comb(passed, k) / math.comb(samples, k)


def _check(samples: int, passed: int, k: int) -> None:
    if not (0 <= passed <= samples and 1 <= k <= samples):
        raise ValueError(
            f"{passed} of {samples} samples passed, k={k}: expected 0 <= passed <= samples, 1 <= k <= samples"
        )


def shown_ks(most: int) -> list[int]:
    """Each k up to EVERY_K_UP_TO, then its doubles, and `most`."""
    doubles = [EVERY_K_UP_TO << power for power in range(1, 20)]
    return sorted({*range(1, min(EVERY_K_UP_TO, most) + 1), *(k for k in doubles if k < most), most}) if most else []


class PassRates:
    """Counts samples and passes by seed. A sample passes when its reward is at least `at`; only scored ones are counted."""

    def __init__(self, at: float = PASS_AT) -> None:
        self.at = at
        self._seeds: dict[int, tuple[int, int]] = {}

    def add(self, reward: float, seed: int) -> None:
        """Counts a scored sample."""
        samples, passed = self._seeds.get(seed, (0, 0))
        self._seeds[seed] = samples + 1, passed + (reward >= self.at)

    def to_json(self) -> dict[str, Json]:
        """As a summary contains it: for each k the means over the seeds that have k scored samples; n is their number."""
        counts = list(self._seeds.values())
        rates: dict[str, Json] = {}
        for k in shown_ks(max((samples for samples, _ in counts), default=0)):
            enough = [(samples, passed) for samples, passed in counts if samples >= k]
            rates[str(k)] = {
                "pass_at_k": _mean([pass_at_k(samples, passed, k) for samples, passed in enough]),
                "pass_hat_k": _mean([pass_hat_k(samples, passed, k) for samples, passed in enough]),
                "seeds": len(enough),
            }
        return {
            "at": self.at,
            "samples": sum(samples for samples, _ in counts),
            "passed": sum(passed for _, passed in counts),
            "k": rates,
        }


def _mean(of_seeds: list[float]) -> dict[str, Json]:
    values = array("d", of_seeds)
    error = clustered_standard_error(values, range(len(values)))
    return {"mean": math.fsum(values) / len(values), "standard_error": error}
