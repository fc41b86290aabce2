"""Requests that wait for their pages before they are admitted: the decisions, without engine, Manager or clock.

SGLang's linker is asked "which prefixes can be restored?" and must answer at once; there is no "not yet". So a request that is being looked up is passed over by the
scheduler, others go ahead of it, and it is asked for again in the next round. All ranks must do the same with a request, in the same
round; each may know another thing by then.

    each rank, each round:   hits = a.looked(rid, keys, now)       how many of keys lead, for the engine's own intersection over ranks
                             v = a.verdict(rid, now)               GO, WAIT or EXPIRE
    over all ranks:          v = max(v)
    each rank:               a.agreed(rid, v)                      whether the request is passed over now

A Manager that hangs must not cost each request its time: while the thread that asks it has been at one thing for too long (Turn) nothing is looked up, and what waits goes.

A request's life here: nothing is known of it ─looked─▶ ASKED ─answered─▶ ANSWERED ─taken, or released─▶ gone; or, if its time is up on any rank, SETTLED: it
computes, and what still comes for it is given back. A request that the engine's own cache has overtaken is not looked for any more: then
it is not seen in a round, and goes.
"""

GO, WAIT, EXPIRE = 0, 1, 2
_ASKED, _ANSWERED, _SETTLED = "asked", "answered", "settled"


class Turn:
    """Of the one thread that looks up, restores and stores: whether it has been at one thing for limit_s and longer. Then nobody is to wait for it, until it goes on.
    So a Manager that hangs costs one limit at most, however many requests there are."""

    def __init__(self, limit_s):
        self._limit, self._since = limit_s, None

    def begins(self, now):
        self._since = now

    def ends(self):
        self._since = None

    def stuck(self, now):
        since = self._since  # another thread's
        return since is not None and now - since >= self._limit


class _Entry:
    __slots__ = ("keys", "state", "until", "query", "hits", "seen", "round")

    def __init__(self, until):
        self.keys, self.state, self.until, self.query, self.hits, self.seen, self.round = (), _SETTLED, until, None, 0, False, None


class Admission:
    """ask(keys) begins a lookup and returns something, or None if nothing is looked up now: the request computes; drop(it) gives it up, with what it has or will get.
    budget_s is how long a request may be passed over, turn that of the thread which answers."""

    def __init__(self, ask, drop, budget_s, turn):
        self._ask, self._drop, self._budget, self._turn = ask, drop, budget_s, turn
        self._entries = {}

    def looked(self, rid, keys, now):
        """The engine wants to know how many of keys lead. 0 is also "not yet": verdict tells them apart."""
        e = self._entries.get(rid)
        if e is None:
            e = self._entries[rid] = _Entry(now + self._budget)
            self._begin(e, keys, now)
        elif e.state != _SETTLED and tuple(keys) != e.keys:
            self._change(e, tuple(keys), now)
        e.seen = True
        # What is said in a round stays so for its verdict, whatever comes in between.
        e.round = e.state
        return e.hits if e.state == _ANSWERED else 0

    def _begin(self, e, keys, now):
        e.keys, e.hits, e.state = tuple(keys), 0, _ASKED
        e.query = None if self._turn.stuck(now) else self._ask(list(keys))
        if e.query is None:
            e.state = _SETTLED

    def _change(self, e, keys, now):
        """The engine's own part of the prompt has grown, or shrunk."""
        skip = len(e.keys) - len(keys)
        if skip > 0 and e.keys[skip:] == keys:
            if e.state == _ANSWERED:
                e.hits = max(0, e.hits - skip)
            e.keys = keys
            return
        self._give_up(e)
        self._begin(e, keys, now)

    def answered(self, query, hits):
        """A lookup has its answer: hits of its keys lead, and their pages are here. False if nobody wants them any more: they are the caller's to give back."""
        for e in self._entries.values():
            if e.query is query and e.state == _ASKED:
                # It was asked with more keys if the engine's own part has grown since: then its first pages are not needed.
                e.state, e.hits = _ANSWERED, max(0, hits - (query.count - len(e.keys)))
                return True
        return False

    def verdict(self, rid, now):
        e = self._entries.get(rid)
        if e is None or not e.seen or e.round != _ASKED:
            return GO
        return EXPIRE if now >= e.until or self._turn.stuck(now) else WAIT

    def agreed(self, rid, verdict):
        """What all ranks do. True: the request is passed over."""
        e = self._entries.get(rid)
        if e is None:
            return verdict == WAIT
        seen, e.seen = e.seen, False
        if verdict == WAIT:
            return True
        if verdict == EXPIRE or not seen:
            self._settle(e)
        return False

    def take(self, rid, keys):
        """The engine loads: returns (query, how many of its pages to skip), which are the caller's now; None if there is nothing."""
        e = self._entries.get(rid)
        if e is None or e.state != _ANSWERED or len(keys) > e.hits or e.keys[:len(keys)] != tuple(keys):
            return None
        query, e.query, e.state, e.hits = e.query, None, _SETTLED, 0
        return query, query.count - len(e.keys)

    def admitted(self, rid):
        """The request is in a batch, or has ended."""
        e = self._entries.pop(rid, None)
        if e is not None:
            self._give_up(e)

    released = admitted

    def _settle(self, e):
        self._give_up(e)
        e.state, e.hits = _SETTLED, 0

    def _give_up(self, e):
        if e.query is not None:
            query, e.query = e.query, None
            self._drop(query)

    def clear(self):
        for rid in list(self._entries):
            self.released(rid)

    def __len__(self):
        return len(self._entries)
