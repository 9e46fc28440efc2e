"""Reading ahead changes when data are read, and nothing else."""

import threading

import pytest

from loong_core.data.read_ahead import ReadAhead
from loong_core.errors import UserError


class Numbers:
    """A stream of its own positions."""

    def __init__(self, fails_at=None):
        self.position = 0
        self.fails_at = fails_at
        self.read = threading.Semaphore(0)

    def next_step(self):
        if self.position == self.fails_at:
            raise UserError("line 7 is broken")
        self.position += 1
        self.read.release()
        return [self.position]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


@pytest.fixture
def ahead():
    made = []

    def make(*args, **kwargs):
        made.append(ReadAhead(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_steps_come_in_order_and_the_position_is_that_of_the_taken_ones(ahead):
    stream = ahead(Numbers(), steps=3)
    assert stream.state_dict() == {"position": 0}
    for step in range(1, 20):
        assert stream.next_step() == [step]
        assert stream.state_dict() == {"position": step}


def test_the_next_steps_are_read_before_they_are_asked_for(ahead):
    numbers = Numbers()
    ahead(numbers, steps=2).next_step()
    assert all(numbers.read.acquire(timeout=10) for _ in range(3))


def test_a_position_is_taken_up_exactly_and_what_was_read_is_dropped(ahead):
    stream = ahead(Numbers(), steps=2)
    for _ in range(5):
        stream.next_step()
    stream.load_state_dict({"position": 2})
    assert stream.state_dict() == {"position": 2}
    assert [stream.next_step() for _ in range(3)] == [[3], [4], [5]]


def test_an_error_is_raised_at_the_step_that_it_belongs_to(ahead):
    stream = ahead(Numbers(fails_at=2), steps=3)
    assert [stream.next_step(), stream.next_step()] == [[1], [2]]
    with pytest.raises(UserError, match="line 7 is broken"):
        stream.next_step()
    assert stream.state_dict() == {"position": 2}


def test_at_least_one_step_is_read_ahead():
    with pytest.raises(ValueError, match="0 steps to read ahead; at least 1"):
        ReadAhead(Numbers(), steps=0)
