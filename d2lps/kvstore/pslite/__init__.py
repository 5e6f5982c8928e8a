"""``engine="mxnet"``: the calls of the store on MXNet 1.9.1 with its own ps-lite.

Start with ``PsLiteStore`` in ``store.py``: each call of the store becomes a request to a child process. That process
is ``__main__.py``, which is also a server or scheduler of MXNet: MXNet knows no deadlines, and hangs or ends its
process when another one is lost. ``Nodes`` starts, watches and ends the processes and decides which error a loss
becomes; the end of ``store.py`` decides which dtypes and optimizers MXNet can handle. Values lie in memory that a
worker and its child share.
"""
