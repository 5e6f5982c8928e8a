"""A worker's end of a distributed store: a connection to every server, and the store that asks over them.

A push goes through ``KVStore.push``, which checks its arguments; through a :class:`~d2lps.kvstore.calls.Push` in a
thread of the store, so that Ctrl-C interrupts the caller and not what is being sent; through ``DistStore._push``, which
makes requests and counts what was answered; and, for each request, through ``ServerClient.ask``, which is one
connection, and ``Channel.send``.

Say a store has two servers, and ``store.push(["w", "b"], [weight, bias])`` pushes 600,000 and 10 numbers. Then

*key*
    is ``"w"`` or ``"b"``; its ``KeySpec`` has its shape, and how many of its pushes count;
*part*
    is what one server has of a key: elements 0 to 300,000 of ``"w"`` on server 0, the others on server 1; all of
    ``"b"`` on one of them. Each server numbers its parts in the order in which they were initialized;
*flat*
    is a value as a tensor with one dimension, and *piece* the view of it that belongs to a part;
*bundle*
    has the parts that one frame carries: the second half of ``"w"`` is one alone, as it is large, and small parts of
    one server travel together;
*place*
    is where a key stands in the lists of the call: 0 for ``"w"`` and 1 for ``"b"``;
*request*
    is one frame that was sent for a bundle, until its answer has come;
*retry*
    has the keys that count already if a call is repeated after an error: their parts are sent once more with the same
    round, and servers count them no second time;
*in doubt*
    is a push of a key of which some parts may count, and others not: the next push of the key first repeats it.
"""
