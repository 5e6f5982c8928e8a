"""A slot of keys on two servers: what is told to anybody survives the loss of either, and no push counts twice.

``messages`` is what servers, workers and the register say to one another, ``replica`` one server's part in a slot,
``requests`` one worker's. None of them knows sockets, threads, clocks or tensors: messages come in, effects go out. So
the same code runs in a simulation (``world``) in which a seed decides what is late, lost, doubled, cut off and killed.

A *view* says who the members are: the primary, and its backup if it has one. Views are numbered; each is made by one
compare-and-set in a register that all can reach. What the primary does is a numbered list of commands, which the backup
does in the same order. A command is *committed* when all members have done it; only then anybody hears of it.
"""

from d2lps.kvstore.replication import story
from d2lps.kvstore.replication.commands import Part
from d2lps.kvstore.replication.messages import Propose, View
from d2lps.kvstore.replication.replica import Replica
from d2lps.kvstore.replication.requests import Requests
from d2lps.kvstore.replication.world import Register, Schedule, World, broken

__all__ = ["Part", "Propose", "Register", "Replica", "Requests", "Schedule", "View", "World", "broken", "story"]
