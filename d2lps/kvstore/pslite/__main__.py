"""A process of MXNet: a scheduler, a server, or the child of a worker, as ps-lite reads from the environment.

MXNet's calls have no deadline, and when another process is lost they hang or end their own. So they are made in a
child process, which can be killed and which ends with its parent.
"""

import ctypes
import mmap
import os
import select
import threading
from contextlib import suppress
from multiprocessing.connection import Connection

from d2lps.kvstore.child import pipe_to_parent, receive, send


class MXNetStore:
    """The requests of a worker, carried out by MXNet; keys are numbers, and values lie in shared memory."""

    def start(self, kind: str) -> int:
        """Join MXNet's other processes, and return the rank that MXNet has assigned."""
        import mxnet
        import numpy

        self.mx, self.np, self.kind = mxnet, numpy, kind
        self.store = mxnet.kv.create(kind)
        self.slots: dict[int, list] = {}  # key → arrays of MXNet, one per device
        return self.store.rank

    def grow(self, path: str, places: list) -> None:
        """Add a slot in the file at ``path`` for each [key, dtype, elements, start in bytes]."""
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
        """Wait until MXNet has read what was pushed, so that it may be overwritten."""
        for key in keys:
            for slot in self.slots[key]:
                self.mx.base.check_call(self.mx.base._LIB.MXNDArrayWaitToWrite(slot.handle))

    def optimizer(self, rule: str, numbers: dict) -> None:
        if not self.kind.startswith("dist") and self.slots:
            # Without an optimizer, such a store of MXNet keeps the sum of a push where it was made, and the next push,
            # now a gradient, would overwrite it. So the values move to a store that has not been pushed to.
            self.pull(list(self.slots))
            self.store = self.mx.kv.create(self.kind)
            self.init(list(self.slots))
        self.store.set_optimizer(self.mx.optimizer.create(rule, **numbers))

    def barrier(self) -> None:
        self.store._barrier()

    def leave(self) -> None:
        """Free the store: MXNet waits for all workers here, and then the first worker stops the servers."""
        self.mx.nd.waitall()
        self.slots.clear()
        self.mx.base.check_call(self.mx.base._LIB.MXKVStoreFree(self.store.handle))
        self.store.handle = ctypes.c_void_p()  # or its finalizer would free it again


def serve(parent: Connection) -> None:
    """Carry out the requests of the worker, one after the other."""
    store, do = MXNetStore(), "start"
    while do != "leave":
        request = receive(parent)
        do = request.pop("do")
        try:
            answer = {"result": getattr(store, do)(**request)}
        except Exception as error:  # the worker raises it
            answer = {"error": [type(error).__name__, str(error)]}
        send(parent, answer)


def end_with(parent: Connection) -> None:
    """End this process when its parent ends, even if MXNet is waiting."""
    hung_up = select.poll()
    hung_up.register(parent, 0)  # 0: only the end
    threading.Thread(target=lambda: (hung_up.poll(), os._exit(1)), daemon=True).start()


if __name__ == "__main__":
    pipe = pipe_to_parent()
    end_with(pipe)
    if os.environ.get("DMLC_ROLE", "worker") == "worker":
        with suppress(EOFError, ConnectionError):  # the worker has ended
            serve(pipe)
        os._exit(0)  # without MXNet's finalizers, which may wait for other processes
    import mxnet  # noqa: F401, a server or scheduler works inside this import until the workers have left
