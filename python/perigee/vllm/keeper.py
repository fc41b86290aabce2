"""One end for all that a process has of a session: with vLLM's executor `uni`, its default on one GPU, the scheduler's half and a rank's half are one process.

The Manager gives a lost session's memory to the next engine when every process of it has ended or has said that it has unmapped everything (Goodbye, Leave), and it
takes that word for a process as a whole: it sees processes, not halves. With each half saying it for itself

  - the scheduler's half, which maps nothing, gave the session back as it was lost, renewed or shut down, while the rank's threads still copied into its slots. Another engine
    has those slots by then: what the rank writes between that engine's copy and its Seal gets a checksum like any page's, and is served for what it is not;
  - the same, with a rank that was just about to join: its Attach is taken, and then the word that the process has nothing;
  - the same, with a rank that joins after the word was said and before a Manager that hangs has heard it: connections are read in any order.

Reading is not among them. What a load has copied is used only once the Manager has said Restored, which it says in a live session alone, for pages that the lease held until then.

So the halves hold a session here, as members, and what makes it safe is one order of its end, whoever begins:

 1. It ends for all. Nobody joins it any more, now or later; the connections of the other members are shut down, so that their threads find out, also with a Manager that hangs.
 2. Each half lets go when none of its threads uses the session: its loads and saves have come back with whatever they came. Its mappings go, its connections stay.
 3. The last one to let go, or to fail to join, or to join by half, says the one Goodbye (Leave, where the connection is gone). Then all connections are closed.

A thread that hangs is a member that never lets go: nothing is said, the memory stays in quarantine, no other session gets it, and the process's end gives it back. A half that is
alone in its process, as with the executor `mp`, is its only member: it says Goodbye as it lets go.
"""

import collections
import threading

from .. import client

# Sessions that this process has let go of, and does not join again. A session takes its broker a tenth of a second or more, and one whose end was not heard is of a Manager that
# registers nobody meanwhile: the last few would do.
MOST_OVER = 1024


class Member:
    """One half's part of a session. session is that half's alone until it lets go; both calls may come from any thread, and again."""

    __slots__ = ("session", "held", "hung_up", "_keeper", "_gone")

    def __init__(self, keeper, held, session):
        self.session, self.held, self.hung_up, self._keeper, self._gone = session, held, False, keeper, False

    def end(self):
        """The session ends for all members. It waits for nothing."""
        self._keeper._end(self)

    def let_go(self):
        """No thread of this half uses the session any more, and none will. Of the last member it is the session's end, and waits for the Manager's word."""
        self._keeper._let_go(self)


class _Held:
    """Under the keeper's lock."""

    __slots__ = ("members", "spent", "joining", "ending")

    def __init__(self):
        self.members, self.spent = [], []  # those that may touch memory; those that have unmapped everything
        self.joining, self.ending = 0, False


class Keeper:
    """Of one process. Its lock is not held while the Manager is spoken with."""

    def __init__(self):
        self._lock, self._held = threading.Lock(), {}  # by credentials
        self._over = collections.deque(maxlen=MOST_OVER)

    def hold(self, session):
        """The member that has registered it. Before anybody is told of its credentials."""
        held = _Held()
        member = Member(self, held, session)
        held.members.append(member)
        with self._lock:
            self._held[session.credentials] = held
        return member

    def join(self, credentials, make):
        """A member that joins with make(credentials), a client.Session. Raises Lost if the session has begun to end here, and whatever make raises."""
        with self._lock:
            held = self._held.get(credentials)
            if credentials in self._over or held is not None and held.ending:
                raise client.Lost("the session has ended")
            if held is None:
                held = self._held[credentials] = _Held()
            held.joining += 1
        member = left = None
        try:
            member = Member(self, held, make(credentials))
        except client.Unfinished as e:
            left = Member(self, held, e.part)
            raise
        finally:
            with self._lock:
                held.joining -= 1
                if left is not None:  # it is as one that has let go: the others are to, and the last says so
                    held.ending = True
                    held.spent.append(left)
                    for other in held.members:
                        self._hang_up(other)
                if member is not None:
                    held.members.append(member)
                    if held.ending:
                        self._hang_up(member)
                last = self._last(credentials, held)
            if last:
                self._say(held)
        return member

    def _end(self, member):
        with self._lock:
            member.held.ending = True
            for other in member.held.members:
                if other is not member:
                    self._hang_up(other)

    @staticmethod
    def _hang_up(member):
        member.hung_up = True
        member.session.interrupt()

    def _let_go(self, member):
        with self._lock:
            if member._gone:
                return
            member._gone = True
        member.session.unmap()
        held = member.held
        with self._lock:
            held.ending = True
            held.members.remove(member)
            held.spent.append(member)
            last = self._last(member.session.credentials, held)
        if last:
            self._say(held)

    def _last(self, credentials, held):
        """Whether nobody is left who touches it, and so whether it is the caller's to say so."""
        if held.members or held.joining:
            return False
        del self._held[credentials]
        if held.spent:
            self._over.append(credentials)
        return bool(held.spent)

    @staticmethod
    def _say(held):
        """By a connection that is still there, if there is one: a Manager that hangs reads it later, and could not be told over another."""
        first, *others = sorted(held.spent, key=lambda m: m.hung_up)
        try:
            first.session.close()
        finally:
            for m in others:
                m.session.drop()


keeper = Keeper()  # this process's
