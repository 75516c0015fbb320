"""What `median` must do."""

import importlib.util

import pytest


@pytest.fixture
def median():
    spec = importlib.util.spec_from_file_location("summary", "/app/summary.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.median


@pytest.mark.parametrize(
    ("values", "expected"),
    [([5], 5), ([3, 1, 2], 2), ([4, 1, 3, 2], 2.5), ([1, 2], 1.5), ([-1, -1, 7, 9], 3)],
)
def test_median_is_the_middle(median, values, expected):
    assert median(values) == expected


def test_the_list_stays_as_it_was(median):
    values = [3, 1, 2]

    median(values)

    assert values == [3, 1, 2]


@pytest.mark.parametrize("values", [(2, 1, 3), range(1, 4), iter([1, 2, 3])])
def test_any_iterable_works(median, values):
    assert median(values) == 2


def test_no_values_are_refused(median):
    with pytest.raises(ValueError, match="median of no values"):
        median([])
