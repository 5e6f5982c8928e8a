"""The solutions of this chapter's exercises, and typical wrong answers, each with its mistake.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

import bisect
import hashlib

from d2lps.notebook.grading import edited

# ---- fault-tolerance


def fault_tolerance(me, peer, workers, send):
    view, members = 0, ()
    done, arrived = {}, {}
    safe = {}  # key → the round that the backup has, too

    def answer(key, who):
        if peer in members and safe.get(key, 0) < done[key][0]:
            return
        for worker in who:
            send(worker, ("value", view, key, *done[key][:2]))

    def push(worker, key, number, gradient):
        had, weights, velocity = done.get(key, (0, 0.0, 0.0))
        if number == had:
            answer(key, [worker])
        if number == had + 1:
            gradients = arrived.setdefault(key, {})
            gradients[worker] = gradient
            if len(gradients) == len(workers):
                velocity = 0.9 * velocity + sum(gradients[i] for i in workers)
                done[key] = (number, weights - 0.1 * velocity, velocity)
                del arrived[key]
                if peer in members:
                    send(peer, ("copy", view, key, done[key]))
                answer(key, workers)

    def on(sender, message):
        nonlocal view, members
        kind, number, *rest = message
        if kind == "view" and number > view:
            view, members = number, rest[0]
        if number != view:
            return
        if kind == "push" and members[0] == me:
            push(sender, *rest[1:])
        if kind == "copy":
            key, done[key] = rest
            send(peer, ("has", view, key, done[key][0]))
        if kind == "has":
            safe[rest[0]] = rest[1]
            answer(rest[0], workers)

    return on


# ---- count-once


def count_once(disk, send):
    def on(worker, id, key, number, gradient):
        counts, total = disk.get(key, ({}, 0))
        if number > counts.get(worker, 0):
            counts[worker] = number
            total += gradient
            disk.put(key, (counts, total))
        send(worker, key, number, total)

    return on


def hashing(keys, hosts, replicas):
    def number(name):
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")

    ring = sorted((number(f"{server} {i}"), server) for server in hosts for i in range(256))
    places = [place for place, _ in ring]
    copies = {}
    for key in keys:
        at, found = bisect.bisect(places, number(key)), []
        while len(found) <= replicas:
            server = ring[at % len(ring)][1]
            if hosts[server] not in [hosts[other] for other in found]:
                found.append(server)
            at += 1
        copies[key] = found
    return copies


WRONG = {
    "count-once": {
        "memory-only": [edited(count_once, ("    def on", "    kept = {}\n\n    def on"), ("disk.get(", "kept.get("),
                               ("disk.put(key, (counts, total))", "kept[key] = counts, total"))],
        "answers-first": [edited(count_once, ("disk.put(", "send(worker, key, number, total)\n            disk.put("))],
        "stored-apart": [
            edited(count_once, ("disk.put(", "disk.put(key, (counts, total - gradient))\n            disk.put(")),
            edited(count_once, ("disk.put(", "disk.put(key, (counts | {worker: number - 1}, total))\n            disk.put(")),
        ],
        "by-message": [edited(count_once, ("number > counts.get(worker, 0)", "id not in counts"), ("counts[worker]", "counts[id]"))],
        "counts-repeats": [edited(count_once, ("number > counts.get(worker, 0)", "True"))],
        "keeps-all": [edited(count_once, ("number > counts.get(worker, 0)", "(worker, number) not in counts"),
                             ("counts[worker]", "counts[worker, number]"))],
        "answers-once": [edited(count_once, ("        send(", "            send("))],
        "differs": [edited(count_once, ("counts.get(worker, 0)", "counts.get(0, 0)"), ("counts[worker]", "counts[0]"))],
    },
    "fault-tolerance": {
        "acked-too-early": [edited(fault_tolerance, ("if peer in members and safe.get(key, 0) < done[key][0]", "if False"))],
        "forgets-who-counted": [edited(
            fault_tolerance, ("key, done[key] = rest", "key, state = rest\n            done[key] = done.get(key, (0,))[:1] + state[1:]"),
            ('("has", view, key, done[key][0])', '("has", view, key, state[0])'))],
        "optimizer-lost": [edited(fault_tolerance, ("key, done[key] = rest", "key, state = rest\n            done[key] = (*state[:2], 0.0)"))],
        "zombie": [edited(fault_tolerance, (
            "rest[0]\n        if number", "rest[0]\n            for key in done:\n                for worker in workers:"
            "\n                    send(worker, ('value', view, key, *done[key][:2]))\n        if number"))],
        "old-view-taken": [edited(fault_tolerance, ("if number != view", "if False"))],
        "waits-for-the-dead": [edited(fault_tolerance, ("peer in members and safe", "safe"))],
        "nobody-answers": [edited(fault_tolerance, ("if number == had:", "if False:"))],
        "differs": [edited(fault_tolerance, ("sum(gradients[i] for i in workers)", "max(gradients.values())"))],
    },
    "hashing": {
        "same-server": [edited(hashing, ("if hosts[server] not in [hosts[other] for other in found]", "if True"))],
        "same-host": [edited(hashing, ("if hosts[server] not in [hosts[other] for other in found]", "if server not in found"))],
        "modulo": [edited(hashing, ("bisect.bisect(places, number(key))", "number(key)"))],
        "by-position": [edited(hashing, ('f"{server} {i}"', 'f"{at} {i}"'),
                               ("for server in hosts for", "for at, server in enumerate(hosts) for"))],
        "python-hash": [edited(hashing, ('int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")', "hash(name)"))],
        "uneven": [edited(hashing, ("range(256)", "range(4)"))],
        "one-heir": [edited(  # the first server is from the ring, and the next ones follow by name
            hashing, ("copies = {}", "copies, names = {}, sorted(hosts)"), ("ring[at % len(ring)][1]", "names[at % len(names)]"),
            ("bisect.bisect(places, number(key)), []", "names.index(ring[bisect.bisect(places, number(key)) % len(ring)][1]), []"))],
        "differs": [lambda keys, hosts, replicas: hashing(keys, hosts, 0)],
    },
}


RULES = {
    "count-once": {
        "total is that of the key": (("disk.get(key", 'disk.get("total"'), ("disk.put(key", 'disk.put("total"')),
        "with this push in it": ("total)\n\n    return", "total - gradient)\n\n    return"),
        "a push counts once": "counts-repeats",
        "of each worker": "differs",
        "of each key, whatever the names": (
            ("counts, total = disk.get(key, ({}, 0))", 'counts, totals = disk.get("all", ({}, {}))\n        total = totals.get(key, 0)'),
            ("counts.get(worker, 0)", 'counts.get(f"{worker}{key}", 0)'), ("counts[worker]", 'counts[f"{worker}{key}"]'),
            ("disk.put(key, (counts, total))", 'disk.put("all", (counts, totals | {key: total}))')),
        "repeated with another id": "by-message",
        "even much later": ("number > counts", "number != counts"),
        "only the disk survives a crash": "memory-only",
        "what was answered is never lost": "answers-first",
        "a put is all or nothing": "stored-apart",
        "every repeat is answered": "answers-once",
        "the disk does not grow": "keeps-all",
        "nor does the memory": (("    def on", "    had = []\n\n    def on"), ("number > ", "had.append(id) or number > ")),
    },
    "fault-tolerance": {
        "view 2 has one member": "waits-for-the-dead",
        "the old server is no member": "zombie",
        "a message belongs to its view": "old-view-taken",
        "a repeated push is answered": "nobody-answers",
        "a copy at the backup before any answer": "acked-too-early",
        "of what has counted": "forgets-who-counted",
        "of the momentum": "optimizer-lost",
        "messages are plain": ("key, done[key]))", "key, done[key], print))"),
        "all bits of the weights": ("sum(gradients[i] for i in workers)", "sum(gradients.values())"),
        "the right weights": "differs",
    },
    "hashing": {
        "replicas + 1 servers": "differs",
        "different ones": "same-server",
        "on different hosts": "same-host",
        "the same in every process": "python-hash",
        "whatever other keys there are": ("number(key)", "number(str(keys.index(key)))"),
        "in whatever order the servers stand": "by-position",
        "nothing else moves": "modulo",
        "who stays keeps its order": ("= found", "= found[len(hosts) % len(found) :] + found[: len(hosts) % len(found)]"),
        "between 0.6 and 1.4 times the mean": "uneven",
        "of the primaries, too": ("= found", "= sorted(found)"),
        "at most 55% have the same second copy": "one-heir",
    },
}
