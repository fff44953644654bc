"""What fit tells the data sets about its epochs."""

import pytest

from tfdist import epoch_order


class Counter:
    """A data set's counter, whose iterators take a number each."""

    def __init__(self):
        self.next = 0
        self.taken = []

    def get(self):
        return self.next

    def set(self, epoch):
        self.next = epoch

    def iterate(self):
        self.taken.append(self.next)
        self.next += 1


@pytest.fixture
def counter():
    counter = Counter()
    epoch_order.follow(counter)
    return counter


def fit(counter, epochs, initial_epoch=0):
    before = len(counter.taken)
    epoch_order.begin_fit()
    for epoch in range(initial_epoch, epochs):
        epoch_order.begin_epoch(epoch)
        counter.iterate()
    epoch_order.end_fit()
    return counter.taken[before:]


def test_a_fit_takes_the_numbers_of_its_epochs(counter):
    assert fit(counter, 3) == [0, 1, 2]


def test_a_second_fit_goes_on(counter):
    fit(counter, 3)
    assert fit(counter, 2) == [3, 4]
    assert fit(counter, 1) == [5]


def test_a_fit_that_continues_by_initial_epoch_goes_on_once(counter):
    assert [fit(counter, epoch + 1, epoch) for epoch in range(3)] == [[0], [1], [2]]


def test_a_resumed_fit_takes_the_numbers_it_would_have_had(counter):
    assert fit(counter, 5, initial_epoch=3) == [3, 4]


def test_looking_at_the_data_before_or_within_a_fit_changes_nothing(counter):
    counter.iterate()
    epoch_order.begin_fit()
    for epoch in range(2):
        epoch_order.begin_epoch(epoch)
        counter.iterate()
        counter.iterate()
    epoch_order.end_fit()
    assert counter.taken == [0, 0, 1, 1, 2]
    assert fit(counter, 1) == [2]


def test_an_iterator_that_lasts_for_all_epochs_counts_them_all(counter):
    epoch_order.begin_fit()
    for epoch in range(4):
        epoch_order.begin_epoch(epoch)
        if epoch == 0:
            counter.iterate()
    epoch_order.end_fit()
    assert fit(counter, 1) == [4]


def test_data_that_a_fit_does_not_read_keeps_its_count(counter):
    other = Counter()
    epoch_order.follow(other)
    fit(counter, 3)
    assert fit(other, 1) == [0]


def test_a_fit_that_fails_is_forgotten(counter):
    epoch_order.begin_fit()
    epoch_order.begin_epoch(0)
    counter.iterate()
    assert fit(counter, 2) == [0, 1]
