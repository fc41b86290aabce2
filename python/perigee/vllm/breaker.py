"""When a Manager is not asked. It knows neither threads nor sockets: time is handed in, in seconds of one clock that never goes back.

A Manager that hangs, or that has become too slow to be of use, must not cost every request its whole budget: it costs one budget, and then nothing until it is
seen to answer in time.
"""

# The pause after the second lateness in a row, and the longest: a Manager that answers too late is looked at once in half a minute.
FIRST_S, LAST_S = 1.0, 30.0


def longer(pause):
    return min(max(2 * pause, FIRST_S), LAST_S)


class Breaker:
    """Of the scheduler's questions. It is closed at first.

        closed  --a question ran out, and nothing was heard since it was sent-->  open; that question is the first probe
        open    --an answer in time-->   closed
        open    --an answer too late-->  open; the next probe after a pause: none at first, since what counts is how it answers now, then longer each time

    Whoever asks sends the probes, so that no request pays for one. Only a question that was answered in time makes the pauses short again, and not a probe:
    a Manager that is quick with probes alone costs ever fewer budgets.
    """

    def __init__(self, budget_s):
        self.budget_s, self.closed, self.openings = budget_s, True, 0
        self._pause, self._due = None, None  # due: None while a probe is under way

    def late(self, now, sent):
        """A question that was sent at sent has run out, with nothing heard since. True: the breaker opens, and this question's answer is still waited for."""
        # What was asked with a rest of a budget says little by running out.
        if not self.closed or now - sent < self.budget_s / 2:
            return False
        self.closed, self._due = False, None
        self.openings += 1
        self._pause = 0.0 if self._pause is None else longer(self._pause)
        return True

    def heard(self, now, sent):
        """An answer to what was sent at sent, a probe or a question."""
        if now - sent <= self.budget_s:
            if self.closed:
                self._pause = None
            self.closed = True
        elif not self.closed:
            self._due, self._pause = now + self._pause, longer(self._pause)

    def wait(self, now):
        """Seconds until a probe is to be sent; None: none is."""
        return None if self.closed or self._due is None else max(0.0, self._due - now)

    def probed(self):
        """It was sent."""
        self._due = None


class Backoff:
    """A pause after a failure, which doubles as long as nothing succeeds. Of a rank's saves: after a step that waited for its whole budget those of the next steps are
    dropped. Of its session: after one that could not be joined."""

    def __init__(self):
        self._until, self._pause, self.strikes = 0.0, 0.0, 0

    def allows(self, now):
        return now >= self._until

    def strike(self, now):
        self._pause = longer(self._pause)
        self._until = now + self._pause
        self.strikes += 1

    def passed(self):
        self._pause = 0.0


class Silence:
    """Of a rank's loads, which one thread does in turn: whether it has stood still for longer than limit_s. Then all loads that wait are given up, and new ones are not
    begun, until it moves again: so a Manager that hangs costs one limit, however many loads there are."""

    def __init__(self, limit_s):
        self.limit_s, self.stuck, self.open, self._moved = limit_s, False, 0, 0.0

    def began(self, now):
        """A load waits. False: it is not to be begun."""
        if self.stuck:
            return False
        if self.open == 0:
            self._moved = now
        self.open += 1
        return True

    def moved(self, now):
        """A page came, or a load's turn. The thread lives."""
        self._moved, self.stuck = now, False

    def ended(self, now):
        """A load that was not given up is over."""
        self.open -= 1
        self.moved(now)

    def dropped(self):
        """All that is open was given up, for another reason."""
        self.open = 0

    def over(self, now):
        """True once: all that is open is to be given up."""
        if self.open == 0 or now - self._moved < self.limit_s:
            return False
        self.stuck, self.open = True, 0
        return True
