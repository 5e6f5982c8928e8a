"""The protocol between a worker and a server: frames of a fixed header, a small table and raw bytes.

=======  =======  ================================================================================================
header   36       magic, version, op, flags, entries, bytes of table and payload, number, CRC-32
table    ≤ 4 MiB  the parts that the frame is about, as entries of 24 bytes, or JSON; then its own CRC-32
payload  ≤ 16 GB  tensors of one dtype one after the other, little-endian; then a 64-bit sum of their words
code     32       HMAC-SHA-256 over all that and the number of earlier frames, if there is a key
=======  =======  ================================================================================================

Start with :class:`Channel` in ``channel.py``: how frames are sent, received and checked. ``frames.py`` decides the
format (header, ops and flags), ``channel.py`` writes and reads it. ``handshake.py`` verifies the other end by a secret,
and ``shared_buffer.py`` shares the memory of large tensors on one host.

Every length is checked before memory is allocated, nothing is unpickled or evaluated, and a payload is received
directly into the memory of its tensor. An invalid frame is a :class:`Broken`: its connection is closed, and nothing has
changed.
"""

from d2lps.kvstore.wire.channel import BLOCK, NOTHING, Channel
from d2lps.kvstore.wire.frames import DTYPES, ENTRY, HEADER, MAGIC, PUSHES, TABLE, Broken, Entry, Frame, Op, raw

__all__ = ["BLOCK", "DTYPES", "ENTRY", "HEADER", "MAGIC", "NOTHING", "PUSHES", "TABLE"]
__all__ += ["Broken", "Channel", "Entry", "Frame", "Op", "raw"]
