"""The rules by which a slot of keys lives on two servers: losing either loses no data, and no push counts twice.

A store without replicas has the same rules: its slots are on one server each, which commits every command at once.

Start with :class:`Replica` in ``replica.py``: the rules of one server. ``commands.py`` has the state of a slot and the
effect of each command, ``requests.py`` the rules of one worker, ``messages.py`` the messages between them. No rule
knows sockets, threads, clocks or tensors, so the same replica runs in the store (:mod:`d2lps.kvstore.server`), which
gives it the pushes of a whole frame by ``Replica.push``, and in a simulation. In ``world.py`` a seed decides which
messages are late, lost or doubled and which servers crash, ``promises.py`` checks every promise I1 to I15, and
``story.py`` shows a run as a trace.

A *view* lists the members of a slot: the primary, and its backup if it has one. Views are numbered, and each is made
by one compare-and-set in a register. The primary numbers its *commands*, and the backup executes them in the same
order. A command is *committed* when all members have executed it; no answer reveals it before that.
"""

from importlib import import_module

from d2lps.kvstore.replication.commands import PartState
from d2lps.kvstore.replication.messages import Propose, View
from d2lps.kvstore.replication.replica import Replica

__all__ = ["FaultPlan", "PartState", "Propose", "Register", "Replica", "Requests", "View", "World", "story"]


def __getattr__(name: str):  # a server, which needs no simulation, starts sooner
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "story":
        return import_module(f"{__name__}.story")
    return getattr(import_module(f"{__name__}.{'requests' if name == 'Requests' else 'world'}"), name)
