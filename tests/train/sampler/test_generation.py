"""Draws of tokens: their distribution, their log-probabilities, and what is not finite."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taskapp_kit.errors import TrainingError
from taskapp_kit.train.sampler.generation import draw_tokens

pytestmark = pytest.mark.train


@settings(max_examples=60)
@given(
    st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=9),
    st.floats(0.25, 4),
    st.floats(0, 1, exclude_max=True),
)
def test_a_draw_inverts_the_cumulative_distribution(logits: list[float], temperature: float, uniform: float) -> None:
    (token,), (log_prob,) = draw_tokens(torch.tensor([logits]), [temperature], [uniform])
    scaled = [logit / temperature for logit in logits]
    top = max(scaled)
    chances = [math.exp(each - top) for each in scaled]
    total = sum(chances)
    below = sum(chances[:token]) / total
    assert below - 1e-5 <= uniform <= below + chances[token] / total + 1e-5
    assert log_prob == pytest.approx(scaled[token] - top - math.log(total), abs=1e-4)


def test_a_token_without_a_chance_is_never_drawn() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
    uniforms = [0.0, 0.25, 0.5, 0.75, math.nextafter(1.0, 0.0)]
    assert draw_tokens(logits.repeat(5, 1), [1.0] * 5, uniforms)[0] == [1, 1, 3, 3, 3]


def test_temperature_0_takes_the_most_probable_token_with_its_log_probability_at_1() -> None:
    tokens, log_probs = draw_tokens(torch.tensor([[0.0, 2.0, 1.0]] * 2), [0.0, 2.0], [0.999, 0.999])
    assert tokens == [1, 2]
    assert log_probs[0] == pytest.approx(2 - math.log(sum(map(math.exp, (0, 2, 1)))))
    assert log_probs[1] == pytest.approx(0.5 - math.log(sum(map(math.exp, (0, 1, 0.5)))))


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_weights_that_diverged_are_an_error(broken: float) -> None:
    with pytest.raises(TrainingError, match="checkpoint"):
        draw_tokens(torch.tensor([[0.0, broken, 1.0]]), [1.0], [0.5])
