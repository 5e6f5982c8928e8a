"""What others recorded of a run: profiles of torch.profiler, and dumps of PyTorch's flight recorder.

Start with ``reading.read``: it makes a ``Profile`` per rank of Chrome traces of any size, and decides what is a product
of matrices, a message and waiting for data. ``parts`` divides the time of each step into parts that add up to it, and
decides who waited for whom; ``lanes`` writes a step as a schedule, for :meth:`d2lps.Trace.from_kineto`. ``recorder``
reads dumps of several ranks and finds the collective at which one of them differs.
"""

from d2lps.profile.lanes import seen
from d2lps.profile.parts import Parts, divide
from d2lps.profile.reading import Message, Profile, ProfileError, read
from d2lps.profile.recorder import Difference, Dump, DumpError, Entry, compare, read_dumps

__all__ = [
    "Difference",
    "Dump",
    "DumpError",
    "Entry",
    "Message",
    "Parts",
    "Profile",
    "ProfileError",
    "compare",
    "divide",
    "read",
    "read_dumps",
    "seen",
]
