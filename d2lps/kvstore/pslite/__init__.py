"""``engine="mxnet"``: the calls of the store on MXNet 1.9.1 with its own ps-lite.

Start with ``store.py``: each call of the store becomes a request to a child process. ``__main__.py`` is that process,
or a server or scheduler of MXNet: MXNet knows no deadlines, and hangs or ends its process when another one is lost.
``nodes.py`` starts, watches and ends the processes and decides which error a loss becomes, and the end of ``store.py``
decides which dtypes and optimizers MXNet can handle. Values lie in memory that a worker and its child share.
"""
