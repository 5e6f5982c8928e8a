"""A process of MXNet's: a scheduler, a server, or what speaks for a worker. ``python -m d2lps.kvstore.pslite``.

What it is stands in the environment, as ps-lite wants it. MXNet's calls know no deadline, and where somebody has gone
they end the process or hang: so they happen in a process that can be ended, and that ends by itself with its parent.
"""

import ctypes
import mmap
import os
import select
import threading
from contextlib import suppress
from multiprocessing.connection import Connection

from d2lps.kvstore.child import line_to_parent, receive, send


class MXNetStore:
    """Does in MXNet what a worker asks for; keys are numbers, and values lie in memory that the worker has, too."""

    def start(self, kind: str) -> int:
        """Join MXNet's other processes, and say as which worker."""
        import mxnet
        import numpy

        self.mx, self.np, self.kind = mxnet, numpy, kind
        self.store = mxnet.kv.create(kind)
        self.slots: dict[int, list] = {}  # key → arrays of MXNet, one per device
        return self.store.rank

    def grow(self, path: str, places: list) -> None:
        """One more slot in the file at ``path`` for each [key, dtype, elements, start], that in bytes."""
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        for key, dtype, elements, start in places:
            slot = self.np.frombuffer(memory, dtype, elements, start)
            self.slots.setdefault(key, []).append(self.mx.nd.from_numpy(slot))

    def init(self, keys: list[int]) -> None:
        self.store.init(keys, [self.slots[key][0] for key in keys])
        self.mx.nd.waitall()

    def push(self, keys: list[int], counts: list[int]) -> None:
        self.store.push(keys, [self.slots[key][:count] for key, count in zip(keys, counts, strict=True)])

    def pull(self, keys: list[int]) -> None:
        outs = [self.slots[key][0] for key in keys]
        self.store.pull(keys, out=outs)
        for out in outs:
            out.wait_to_read()

    def settle(self, keys: list[int]) -> None:
        """Wait until nobody reads what was pushed, so that it may be written again."""
        for key in keys:
            for slot in self.slots[key]:
                self.mx.base.check_call(self.mx.base._LIB.MXNDArrayWaitToWrite(slot.handle))

    def optimizer(self, rule: str, numbers: dict) -> None:
        if not self.kind.startswith("dist") and self.slots:
            # Without an optimizer, such a store of MXNet keeps the sum of a push where it was made, and the next
            # push, now a gradient, would be summed over it: the values move to a store that has not been pushed to.
            self.pull(list(self.slots))
            self.store = self.mx.kv.create(self.kind)
            self.init(list(self.slots))
        self.store.set_optimizer(self.mx.optimizer.create(rule, **numbers))

    def barrier(self) -> None:
        self.store._barrier()

    def leave(self) -> None:
        """MXNet waits here for all workers; the last word of the first of them stops the servers."""
        self.mx.nd.waitall()
        self.slots.clear()
        self.mx.base.check_call(self.mx.base._LIB.MXKVStoreFree(self.store.handle))
        self.store.handle = ctypes.c_void_p()  # which its own end would free again


def serve(parent: Connection) -> None:
    """Do what the worker asks for, one after the other."""
    store, do = MXNetStore(), "start"
    while do != "leave":
        request = receive(parent)
        do = request.pop("do")
        try:
            answer = {"result": getattr(store, do)(**request)}
        except Exception as error:  # whatever is wrong with MXNet, the worker has to hear of it
            answer = {"error": [type(error).__name__, str(error)]}
        send(parent, answer)


def end_with(parent: Connection) -> None:
    """End this process when the other end of the line is gone, whatever MXNet is waiting for."""
    hung_up = select.poll()
    hung_up.register(parent, 0)  # 0: of nothing but the end
    threading.Thread(target=lambda: (hung_up.poll(), os._exit(1)), daemon=True).start()


if __name__ == "__main__":
    line = line_to_parent()
    end_with(line)
    if os.environ.get("DMLC_ROLE", "worker") == "worker":
        with suppress(EOFError, ConnectionError):  # the worker has gone
            serve(line)
        os._exit(0)  # what MXNet would still do at the end of a process may wait for others
    import mxnet  # noqa: F401, as a server or scheduler it works inside its import, until the workers have left
