"""The random stream draws what numpy's legacy generator draws."""

import copy

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from environments.crafter.randomness import RandomStream

draws = st.lists(st.one_of(st.none(), st.integers(1, 5000)), max_size=60)


@given(st.integers(0, 2**31 - 2), draws)
def test_same_numbers_as_numpy(seed: int, wanted: list[int | None]) -> None:
    ours, numpys = RandomStream(seed), np.random.RandomState(seed)
    for span in wanted:
        if span is None:
            assert ours.uniform() == numpys.uniform()
        else:
            assert ours.randint(7, 7 + span) == numpys.randint(7, 7 + span)
    assert np.array_equal(32 + 95 * ours.uniform(30), numpys.uniform(32, 127, 30))


@given(st.integers(0, 2**31 - 2), st.integers(0, 700))
def test_a_restored_or_copied_stream_goes_on(seed: int, before: int) -> None:
    stream = RandomStream(seed)
    stream.uniform(before)
    twins = [RandomStream.restore(stream.save()), copy.deepcopy(stream)]
    expected = [stream.uniform(), stream.randint(0, 1000), stream.uniform()]
    for twin in twins:
        assert [twin.uniform(), twin.randint(0, 1000), twin.uniform()] == expected
