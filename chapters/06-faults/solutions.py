"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""

import math
import uuid

# ---- detect, interval, atomic-save, hashing


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


# ---- detect, interval, atomic-save, hashing


def detector(limit=lambda every, lost, delay: (lost + 1) * every + delay, clock=lambda sent, now: now, forgives=True,
             pause=lambda every, silence: every, end=True, begin=True, silent=True, keeps=True, one=False, zero=False, first=True):
    """An answer with one thing changed: the limit, the clock, what is forgiven, and what counts as a sign of life."""
    def answer(nodes, every, lost, delay, now):
        last = {node: 0 if zero else now for node in nodes} if begin else {}
        state, suspected, allowed = {"asked": now if first else math.inf}, set(), limit(every, lost, delay)
        longest = pause(every, (lost + 1) * every + delay)

        def heard(node, sent, now):
            for each in nodes if one else [node]:
                last[each] = clock(sent, now)
            if forgives:
                suspected.discard(node)

        def ended(node, now):
            if end:
                suspected.add(node)

        def suspects(now):
            if now - state["asked"] > longest:
                for node in last:
                    last[node] = max(last[node], now)
            state["asked"] = now
            late = {node for node in last if silent and now - last[node] > allowed}
            if not keeps:
                return late | suspected
            suspected.update(late)
            return set(suspected)
        return heard, ended, suspects
    return answer


def pushed_back(nodes, every, lost, delay, now):
    """After its own stop every node counts as heard, even those that were suspected."""
    heard, ended, suspects = detector(keeps=False)(nodes, every, lost, delay, now)
    return heard, ended, suspects


def all_but_the_first(nodes, every, lost, delay, now):
    """The first node is never looked at."""
    heard, ended, suspects = detect(nodes, every, lost, delay, now)
    return heard, ended, lambda now: suspects(now) - {nodes[0]}


def everybody_else(nodes, every, lost, delay, now):
    """When one is silent, all are suspected."""
    heard, ended, suspects = detect(nodes, every, lost, delay, now)
    return heard, ended, lambda now: set(nodes) if suspects(now) else set()


def only_two_of_three(nodes, every, lost, delay, now):
    return detect(nodes, every, lost, delay, now)[:2]


def without_a_set(nodes, every, lost, delay, now):
    heard, ended, suspects = detect(nodes, every, lost, delay, now)
    return heard, ended, lambda now: len(suspects(now))


def with_times(nodes, every, lost, delay, now):
    heard, ended, suspects = detect(nodes, every, lost, delay, now)
    return heard, ended, lambda now: [(node, now) for node in nodes]


def of_young(n, hours, delta, restart):
    return math.sqrt(2 * delta * hours * 3600 / n)


def of_daly(n, hours, delta, restart):
    mtbf = hours * 3600 / n
    small = delta / (2 * mtbf)
    return math.sqrt(2 * delta * mtbf) * (1 + math.sqrt(small) / 3 + small / 9) - delta


def given(change):
    """The right interval for other numbers."""
    return lambda n, hours, delta, restart: interval(*change(n, hours, delta, restart))


def returned(change):
    return lambda n, hours, delta, restart: change(interval(n, hours, delta, restart), delta, hours * 3600 / n)


def saver(sync=True, folder=True, first=False, tmp=lambda name: name + ".new", whole=lambda name: name + ".data",
          removes=False, before=None):
    """An answer with one thing changed: how files are called, what is synced, and when it gets its name."""
    def answer(fs):
        def save(name, data):
            if before:
                before(fs, name)
            if removes and whole(name) in fs.names():
                fs.remove(whole(name))
            if first:
                fs.write(tmp(name), b"")
                fs.rename(tmp(name), whole(name))
                fs.write(whole(name), data)
                fs.sync(whole(name))
            else:
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


def folder_before(fs):
    def save(name, data):
        fs.write(name + ".new", data)
        fs.sync(name + ".new")
        fs.sync_folder()
        fs.rename(name + ".new", name + ".data")
    return save, atomic_save(fs)[1]


def old_one_aside(fs):
    """The old file is put aside, and load does not look there."""
    def save(name, data):
        fs.write(name + ".new", data)
        fs.sync(name + ".new")
        if name + ".data" in fs.names():
            fs.rename(name + ".data", name + ".old")
        fs.rename(name + ".new", name + ".data")
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


def loads(change):
    def answer(fs):
        save, load = atomic_save(fs)
        return save, lambda name: change(load(name))
    return answer


WRONG = {
    "detect": {
        "too-short": [detector(limit=lambda every, lost, delay: lost * every + delay),
                      detector(limit=lambda every, lost, delay: (lost + 1) * every)],
        "too-long": [detector(limit=lambda every, lost, delay: 30.0),
                     detector(limit=lambda every, lost, delay: 3 * ((lost + 1) * every + delay)),
                     detector(limit=lambda every, lost, delay: (lost + 1) * (every + delay))],
        "wall-clocks": [detector(clock=lambda sent, now: sent)],
        "never-forgives": [detector(forgives=False)],
        "one-timer": [detector(one=True)],
        "own-pause": [detector(pause=lambda every, silence: math.inf), detector(pause=lambda every, silence: 3 * silence),
                      detector(first=False)],
        "waits-for-end": [detector(silent=False)],
        "ignores-end": [detector(end=False)],
        "before-first": [detector(begin=False), detector(zero=True)],
        "takes-back": [pushed_back],
        "misses-dead": [all_but_the_first],
        "suspects-living": [everybody_else],
        "not-nodes": [without_a_set, with_times],
        "not-three": [only_two_of_three],
        "nothing-returned": [lambda nodes, every, lost, delay, now: None],
        "raised": [lambda nodes, every, lost, delay, now: (print, print, lambda now: nodes[99])],
    },
    "interval": {
        "one-device": [lambda n, hours, delta, restart: math.sqrt(2 * delta * hours * 3600),
                       lambda n, hours, delta, restart: of_daly(1, hours, delta, restart)],
        "other-unit": [lambda n, hours, delta, restart: math.sqrt(2 * delta * hours / n),
                       returned(lambda work, delta, mtbf: work / 60)],
        "without-two": [lambda n, hours, delta, restart: math.sqrt(delta * hours * 3600 / n)],
        "adds-restart": [lambda n, hours, delta, restart: of_young(n, hours, delta + restart, restart),
                         given(lambda n, hours, delta, restart: (n, hours, delta + restart, restart))],
        "counts-save": [returned(lambda work, delta, mtbf: work + delta),
                        lambda n, hours, delta, restart: of_daly(n, hours, delta, restart) + delta],
        "delta-twice": [returned(lambda work, delta, mtbf: work - delta if work > delta else work),
                        lambda n, hours, delta, restart: max(of_daly(n, hours, delta, restart) - delta, delta / 9)],
        "young-too-far": [of_young, lambda *given: min(of_young(*given), given[1] * 3600 / given[0])],
        "too-often": [lambda n, hours, delta, restart: 60, returned(lambda work, delta, mtbf: work / 3)],
        "too-seldom": [lambda n, hours, delta, restart: 3600, returned(lambda work, delta, mtbf: mtbf)],
        "not-a-time": [returned(lambda work, delta, mtbf: -work), returned(lambda work, delta, mtbf: math.nan)],
        "not-a-number": [returned(lambda work, delta, mtbf: [work]), returned(lambda work, delta, mtbf: f"{work} s")],
        "nothing-returned": [lambda n, hours, delta, restart: None],
        "raised": [lambda n, hours, delta, restart: hours / (n - n)],
        "not-general": [lambda n, hours, delta, restart: interval(n, hours, delta, restart) if delta == 60 else 1 / 0],
    },
    "atomic-save": {
        "in-place": [saver(tmp=str, whole=str), saver(tmp=str, whole=str, sync=False, folder=False), saver(first=True)],
        "no-sync": [saver(sync=False)],
        "rename-first": [synced_too_late],
        "no-sync-folder": [saver(folder=False), folder_before],
        "deletes-old-first": [saver(removes=True), old_one_aside],
        "same-name": [saver(tmp=lambda name: "new")],
        "leaves-rubbish": [a_new_name_each_time],
        "nothing-there": [lambda fs: (atomic_save(fs)[0], fs.read), loads(lambda data: data or b"")],
        "changes-data": [loads(lambda data: data and data[:9]), loads(str), loads(lambda data: data or None)],
        "not-two": [lambda fs: atomic_save(fs)[0]],
        "lost": [newest_first],
        "nothing-returned": [lambda fs: None],
        "raised": [lambda fs: (lambda name, data: fs.write(data, name), atomic_save(fs)[1])],
    },
}
