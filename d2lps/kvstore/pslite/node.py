"""A process of MXNet's: a scheduler, a server, or what speaks for a worker. ``python -m d2lps.kvstore.pslite.node``.

What it is stands in the environment, as ps-lite wants it; who started it holds the other end of its input, a socket.
MXNet's calls know no deadline, and where somebody has gone they end the process or hang: so they happen in a process
that can be ended, and that ends by itself with the one that started it.
"""

import ctypes
import json
import mmap
import os
import select
import socket
import struct
import sys
import threading
from itertools import accumulate

SIZE = struct.Struct("<I")
ALIGNED = 64  # bytes


def send(line: socket.socket, said: dict, fds: list[int] = ()) -> None:
    """One message, with open files."""
    data = json.dumps(said).encode()
    socket.send_fds(line, [SIZE.pack(len(data))], fds)
    line.sendall(data)


def receive(line: socket.socket) -> tuple[dict, list[int]]:
    """One message and its open files. Raises EOFError where the other end has gone."""
    head, fds, _, _ = socket.recv_fds(line, SIZE.size, 1, socket.MSG_WAITALL)
    data = line.recv(SIZE.unpack(head)[0], socket.MSG_WAITALL) if len(head) == SIZE.size else b""
    if not data:
        raise EOFError
    return json.loads(data), fds


def layout(sizes: list[int]) -> tuple[list[int], int]:
    """Where pieces of these sizes begin in one memory, and the size of all of it; bytes."""
    *starts, end = accumulate((-(-size // ALIGNED) * ALIGNED for size in sizes), initial=0)
    return starts, end


class End:
    """What does in MXNet what a worker asks for."""

    def __init__(self, kind: str):
        import mxnet
        import numpy

        self.mx, self.np, self.kind = mxnet, numpy, kind
        self.store = mxnet.kv.create(kind)
        self.slots: dict[int, list] = {}  # key → arrays of MXNet that lie in the worker's memory, one per device

    def said(self) -> dict:
        return {"rank": self.store.rank, "num_workers": self.store.num_workers}

    def init(self, keys: list, fds: list[int]) -> None:
        self.room(keys, fds)
        names = [key for key, _, _ in keys]
        self.store.init(names, [self.slots[key][0] for key in names])
        self.mx.nd.waitall()

    def room(self, keys: list, fds: list[int]) -> None:
        """One more slot for each [key, dtype, elements]."""
        types = [self.np.dtype(dtype) for _, dtype, _ in keys]
        starts, end = layout([dtype.itemsize * elements for dtype, (_, _, elements) in zip(types, keys, strict=True)])
        memory = mmap.mmap(fds[0], end)
        os.close(fds[0])
        for (key, _, elements), dtype, start in zip(keys, types, starts, strict=True):
            here = self.np.frombuffer(memory, dtype, elements, start)
            self.slots.setdefault(key, []).append(self.mx.nd.from_numpy(here))

    def push(self, keys: list[int], counts: list[int]) -> None:
        self.store.push(keys, [self.slots[key][:count] for key, count in zip(keys, counts, strict=True)])

    def pull(self, keys: list[int]) -> None:
        found = [self.slots[key][0] for key in keys]
        self.store.pull(keys, out=found)
        for one in found:
            one.wait_to_read()

    def settle(self, keys: list[int]) -> None:
        """Wait until nobody reads what was pushed, so that it may be written again."""
        for key in keys:
            for slot in self.slots[key]:
                self.mx.base.check_call(self.mx.base._LIB.MXNDArrayWaitToWrite(slot.handle))

    def optimizer(self, name: str, numbers: dict) -> None:
        if not self.kind.startswith("dist") and self.slots:
            # Without an optimizer, such a store of MXNet keeps the sum of a push where it was made, and the next
            # push, now a gradient, would be summed over it: the values move to a store that has not been pushed to.
            self.pull(list(self.slots))
            self.store = self.mx.kv.create(self.kind)
            self.store.init(list(self.slots), [slots[0] for slots in self.slots.values()])
        self.store.set_optimizer(self.mx.optimizer.create(name, **numbers))

    def barrier(self) -> None:
        self.store._barrier()

    def leave(self) -> None:
        """MXNet waits here for all workers; the last word of the first of them stops the servers."""
        self.mx.nd.waitall()
        self.slots.clear()
        self.mx.base.check_call(self.mx.base._LIB.MXKVStoreFree(self.store.handle))
        self.store.handle = ctypes.c_void_p()  # which its own end would free again


def serve(line: socket.socket, kind: str) -> None:
    """Do what the worker asks for, one after the other."""
    try:
        end = End(kind)
    except Exception as error:  # whatever is wrong with MXNet here, the worker has to hear of it
        send(line, {"error": f"{type(error).__name__}: {error}"})
        return
    send(line, end.said())
    while True:
        try:
            said, fds = receive(line)
        except EOFError:
            return
        do = said.pop("do")
        try:
            getattr(end, do)(**said, **({"fds": fds} if fds else {}))
            answer = {}
        except Exception as error:
            answer = {"error": str(error).strip().splitlines()[0] if str(error).strip() else repr(error)}
        send(line, answer)
        if do == "leave":
            return


def end_with(line: socket.socket) -> None:
    """End this process when the other end of ``line`` is gone, whatever MXNet is waiting for."""
    looking = select.poll()
    looking.register(line, 0)  # 0: tell of nothing but the end
    threading.Thread(target=lambda: (looking.poll(), os._exit(1)), daemon=True).start()


def main() -> None:
    """Be what the environment says."""
    line = socket.socket(fileno=os.dup(0))
    end_with(line)
    if len(sys.argv) > 1:
        serve(line, sys.argv[1])
        os._exit(0)  # what MXNet would still do at the end of a process may wait for others
    import mxnet  # noqa: F401, as a server or scheduler it works inside its import, until the workers have left


if __name__ == "__main__":
    main()
