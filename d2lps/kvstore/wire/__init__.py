"""What travels between a worker and a server: frames of a fixed header, a small table and raw bytes.

=======  =======  ================================================================================================
header   36       magic, version, op, flags, entries, bytes of table and payload, number, CRC-32
table    ≤ 4 MiB  what the frame is about: entries of 24 bytes each, or JSON; then its own CRC-32
payload  ≤ 16 GB  one tensor, or several of one dtype one after the other, little-endian, then a 64-bit sum of their
                  words
code     32       HMAC-SHA-256 over all that and how many frames went before, where there is a key
=======  =======  ================================================================================================

Every length is checked before anything is made for it, nothing is ever unpickled or evaluated, and a payload goes
from the socket straight into the memory of its tensor. A frame that is not right is a :class:`Broken`: its
connection is closed and nothing has changed.
"""

from d2lps.kvstore.wire.channel import BLOCK, Channel
from d2lps.kvstore.wire.frames import (
    DTYPES,
    ENTRY,
    HEADER,
    MAGIC,
    NOTHING,
    PUSHES,
    TABLE,
    Broken,
    Entry,
    Frame,
    Op,
    raw,
)

__all__ = ["BLOCK", "DTYPES", "ENTRY", "HEADER", "MAGIC", "NOTHING", "PUSHES", "TABLE"]
__all__ += ["Broken", "Channel", "Entry", "Frame", "Op", "raw"]
