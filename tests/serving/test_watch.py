"""Every way of the drawing in tfdist.serving.watch, with invented times."""

from __future__ import annotations

import pytest

from tfdist.serving.watch import ChiefWatch


def test_a_chief_that_never_comes():
    watch = ChiefWatch(started=100.0, start_timeout=5.0)
    watch.missed(101.0, is_refused=True)
    assert watch.verdict(104.9) is None
    assert watch.verdict(105.0) == "did not come within 5 s (start_timeout)"


def test_a_chief_that_has_claimed_may_take_longer_and_ends_before_it_connects():
    watch = ChiefWatch(started=0.0, start_timeout=5.0)
    watch.claimed_at = 4.0
    assert watch.verdict(30.0) is None
    watch.claimed_at = 20.0
    assert watch.verdict(49.0) is None
    assert "ended before it was connected" in (watch.verdict(50.0) or "")


def test_a_chief_that_is_up_and_refused():
    watch = ChiefWatch(started=0.0, start_timeout=5.0)
    watch.saw(3.0)
    assert watch.is_up
    assert watch.verdict(1000.0) is None, "nobody has looked for it in vain"
    watch.missed(1000.0, is_refused=True)
    assert watch.verdict(1002.9) is None
    assert "is gone without a word" in (watch.verdict(1003.0) or "")


def test_a_chief_that_is_back_in_time():
    watch = ChiefWatch(started=0.0, start_timeout=5.0)
    watch.saw(1.0)
    watch.missed(10.0, is_refused=True)
    watch.saw(12.0)
    watch.missed(20.0, is_refused=True)
    assert watch.verdict(22.9) is None


@pytest.mark.parametrize(("now", "gone"), [(29.0, False), (30.0, True)])
def test_a_chief_that_does_not_answer_at_all_has_longer(now, gone):
    watch = ChiefWatch(started=0.0, start_timeout=5.0)
    watch.saw(1.0)
    for second in range(int(now) + 1):
        watch.missed(100.0 + second, is_refused=second < 2)
    assert (watch.verdict(100.0 + now) == "has not been reachable for 30 s") is gone
