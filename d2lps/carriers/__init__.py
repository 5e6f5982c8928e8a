"""Carriers: how the bytes of a plan travel, and what runs one.

``execute.run`` checks what it is given and compiles the plan into the program of this process (``base``: which copies
to keep, what to send, what to update, and what each has to wait for). A carrier then only moves bytes::

    here            all nodes in this process, on any list of devices
    processes       a process per node, over ``gloo`` (sockets) or ``nccl`` (GPUs)
    shared_memory   processes of one host that read each other's memory: ``shared_program``, ``segments``

``ranks`` is what carriers of several processes have in common; at a ``rendezvous`` they agree before a run, gather
its times after it, and find out who is lost. ``tensors`` and ``reductions`` refuse what does not fit.
"""
