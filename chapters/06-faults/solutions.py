"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""

import math
import uuid


def detect(nodes, every, lost, delay, now):
    limit = (lost + 1) * every + delay
    last, asked, suspected = dict.fromkeys(nodes, now), now, set()

    def heard(node, sent, now):
        last[node] = now
        suspected.discard(node)

    def ended(node, now):
        suspected.add(node)

    def suspects(now):
        nonlocal asked
        if now - asked > every:  # this process itself was stopped
            last.update(dict.fromkeys(nodes, now))
        asked = now
        suspected.update(node for node in nodes if now - last[node] > limit)
        return set(suspected)

    return heard, ended, suspects


def interval(n, hours, delta, restart):
    mtbf = hours * 3600 / n

    def takes(work):  # seconds for a second of work, but for a factor
        return math.expm1((work + delta) / mtbf) / work

    low, high = 0.0, mtbf
    while high - low > mtbf / 10000:
        third = (high - low) / 3
        if takes(low + third) < takes(high - third):
            high -= third
        else:
            low += third
    return low + (high - low) / 2


def atomic_save(fs):
    def save(name, data):
        fs.write(name + ".new", data)
        fs.sync(name + ".new")
        fs.rename(name + ".new", name + ".data")
        fs.sync_folder()

    def load(name):
        return fs.read(name + ".data") if name + ".data" in fs.names() else None

    return save, load


def detector(limit=lambda every, lost, delay: (lost + 1) * every + delay, clock=lambda sent, now: now, forgives=True,
             pause=lambda every: every, end=True, begin=True, keeps=True, one=False):
    """An answer with one thing changed: the limit, the clock, what is forgiven, and what counts as a sign of life."""
    def answer(nodes, every, lost, delay, now):
        last = dict.fromkeys(nodes, now) if begin else {}
        asked, suspected, allowed = now, set(), limit(every, lost, delay)

        def heard(node, sent, now):
            for each in nodes if one else [node]:
                last[each] = clock(sent, now)
            if forgives:
                suspected.discard(node)

        def ended(node, now):
            if end:
                suspected.add(node)

        def suspects(now):
            nonlocal asked
            if now - asked > pause(every):
                last.update(dict.fromkeys(last, now))
            asked = now
            late = {node for node in last if now - last[node] > allowed}
            if not keeps:
                return late | suspected
            suspected.update(late)
            return set(suspected)
        return heard, ended, suspects
    return answer


def of_young(n, hours, delta, restart):
    return math.sqrt(2 * delta * hours * 3600 / n)


def saver(sync=True, folder=True, tmp=lambda name: name + ".new", whole=lambda name: name + ".data", removes=False):
    """An answer with one thing changed: how files are called, what is synced, and when it gets its name."""
    def answer(fs):
        def save(name, data):
            if removes and whole(name) in fs.names():
                fs.remove(whole(name))
            fs.write(tmp(name), data)
            if sync:
                fs.sync(tmp(name))
            if tmp(name) != whole(name):
                fs.rename(tmp(name), whole(name))
            if folder:
                fs.sync_folder()

        def load(name):
            return fs.read(whole(name)) if whole(name) in fs.names() else None
        return save, load
    return answer


def synced_too_late(fs):
    def save(name, data):
        fs.write(name + ".new", data)
        fs.rename(name + ".new", name + ".data")
        fs.sync(name + ".data")
        fs.sync_folder()
    return save, atomic_save(fs)[1]


def newest_first(fs):
    """What was not finished is taken for the newest."""
    def load(name):
        for each in (name + ".new", name + ".data"):
            if each in fs.names():
                return fs.read(each)
    return atomic_save(fs)[0], load


def a_new_name_each_time(fs):
    def save(name, data):
        tmp = f"{name}.{uuid.uuid4().hex}"
        fs.write(tmp, data)
        fs.sync(tmp)
        fs.rename(tmp, name + ".data")
        fs.sync_folder()
    return save, atomic_save(fs)[1]


WRONG = {
    "detect": {
        "too-short": [detector(limit=lambda every, lost, delay: lost * every + delay)],
        "too-long": [detector(limit=lambda every, lost, delay: 30.0)],
        "wall-clocks": [detector(clock=lambda sent, now: sent)],
        "never-forgives": [detector(forgives=False)],
        "one-timer": [detector(one=True)],
        "own-pause": [detector(pause=lambda every: math.inf)],
        "before-first": [detector(begin=False)],
        "differs": [detector(keeps=False), detector(end=False)],
        "wrong-type": [lambda *given: detect(*given)[:2]],
    },
    "interval": {
        "one-device": [lambda n, hours, delta, restart: math.sqrt(2 * delta * hours * 3600)],
        "other-unit": [lambda n, hours, delta, restart: math.sqrt(2 * delta * hours / n)],
        "without-two": [lambda n, hours, delta, restart: math.sqrt(delta * hours * 3600 / n)],
        "adds-restart": [lambda n, hours, delta, restart: of_young(n, hours, delta + restart, restart)],
        "young-too-far": [of_young],
        "too-often": [lambda n, hours, delta, restart: 60],
        "too-seldom": [lambda n, hours, delta, restart: 3600],
        "differs": [lambda *given: -interval(*given)],
        "wrong-type": [lambda *given: [interval(*given)]],
    },
    "atomic-save": {
        "in-place": [saver(tmp=str, whole=str)],
        "no-sync": [saver(sync=False)],
        "rename-first": [synced_too_late],
        "no-sync-folder": [saver(folder=False)],
        "deletes-old-first": [saver(removes=True)],
        "same-name": [saver(tmp=lambda name: "new")],
        "leaves-rubbish": [a_new_name_each_time],
        "differs": [newest_first],
        "wrong-type": [lambda fs: atomic_save(fs)[0]],
    },
}
