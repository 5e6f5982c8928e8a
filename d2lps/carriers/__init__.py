"""Carriers: run a plan on real tensors and move its bytes.

Start with ``execute.run``. It checks its arguments, and ``base`` compiles the plan into the program of this process:
copies, sends and updates, each with the operations it waits for. A carrier then only moves bytes::

    here            all nodes in this process, on any list of devices
    processes       a process per node, over ``gloo`` (sockets) or ``nccl`` (GPUs)
    shared_memory   processes of one host that read each other's memory: ``shared_program``, ``segments``

``ranks`` is the common part of carriers of several processes, and decides who plays which node; ``rendezvous`` lets
them agree before a run and decides which rank is named as lost. A tensor that does not fit is refused in ``tensors``; a
new reduction goes into ``reductions``; ``leftovers`` removes the files of killed processes.
"""
