"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""

import bisect
import hashlib
import math
import random
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
        if now - asked > 2 * every:  # this process itself was stopped
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
        fs.rename(name + ".new", name)
        fs.sync_folder()

    def load(name):
        return fs.read(name) if name in fs.names() else None

    return save, load


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


# What learners write instead. Each answer does one thing wrong.


def detector(limit=lambda every, lost, delay: (lost + 1) * every + delay, clock=lambda sent, now: now, forgives=True,
             pauses=True, end=True, begin=True, silent=True, keeps=True, one=False, zero=False):
    """An answer with one thing changed: the limit, the clock, what is forgiven, and what counts as a sign of life."""
    def answer(nodes, every, lost, delay, now):
        last = {node: 0 if zero else now for node in nodes} if begin else {}
        state, suspected, allowed = {"asked": now}, set(), limit(every, lost, delay)

        def heard(node, sent, now):
            for each in nodes if one else [node]:
                last[each] = clock(sent, now)
            if forgives:
                suspected.discard(node)

        def ended(node, now):
            if end:
                suspected.add(node)

        def suspects(now):
            if pauses and now - state["asked"] > 2 * every:
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


def counts_heartbeats(nodes, every, lost, delay, now):
    """Who has sent fewer heartbeats than another one, by too many, is suspected."""
    count, gone, most = dict.fromkeys(nodes, 0), set(), lost + 1 + math.ceil(delay / every)

    def heard(node, sent, now):
        count[node] += 1
        gone.discard(node)

    def suspects(now):
        return gone | {node for node in nodes if count[node] < max(count.values()) - most}
    return heard, lambda node, now: gone.add(node), suspects


def counts_asks(nodes, every, lost, delay, now):
    """Silence in calls, of which there should be one in each interval."""
    calls, gone = dict.fromkeys(nodes, 0), set()

    def heard(node, sent, now):
        calls[node] = 0
        gone.discard(node)

    def suspects(now):
        for node in nodes:
            calls[node] += 1
            if (calls[node] - 1) * every > (lost + 1) * every + delay:
                gone.add(node)
        return set(gone)
    return heard, lambda node, now: gone.add(node), suspects


def in_a_row(nodes, every, lost, delay, now):
    """Only the node that was heard last, and the one before, are looked at: the others may be dead."""
    heard, ended, suspects = detect(nodes, every, lost, delay, now)
    return heard, ended, lambda now: set(sorted(suspects(now))[1:])


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


def waits_a_while(nodes, every, lost, delay, now):
    import time

    heard, ended, suspects = detect(nodes, every, lost, delay, now)

    def waiting(now):
        time.sleep(every)
        return suspects(now)
    return heard, ended, waiting


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


def saver(write=None, sync=True, folder=True, first=False, tmp=lambda name: name + ".new", removes=False, before=None):
    """An answer with one thing changed: what is written, what is synced, and when it gets its name."""
    def answer(fs):
        def save(name, data):
            if before:
                before(fs, name)
            if removes and name in fs.names():
                fs.remove(name)
            if first:
                fs.write(tmp(name), b"")
                fs.rename(tmp(name), name)
                fs.write(name, data)
                fs.sync(name)
            else:
                fs.write(tmp(name), data)
                if sync:
                    fs.sync(tmp(name))
                if tmp(name) != name:
                    fs.rename(tmp(name), name)
            if folder:
                fs.sync_folder()

        def load(name):
            return fs.read(name) if name in fs.names() else None
        return save, load
    return answer


def synced_too_late(fs):
    def save(name, data):
        fs.write(name + ".new", data)
        fs.rename(name + ".new", name)
        fs.sync(name)
        fs.sync_folder()
    return save, atomic_save(fs)[1]


def folder_before(fs):
    def save(name, data):
        fs.write(name + ".new", data)
        fs.sync(name + ".new")
        fs.sync_folder()
        fs.rename(name + ".new", name)
    return save, atomic_save(fs)[1]


def old_one_aside(fs):
    """The old file is put aside, and load does not look there."""
    def save(name, data):
        fs.write(name + ".new", data)
        fs.sync(name + ".new")
        if name in fs.names():
            fs.rename(name, name + ".old")
        fs.rename(name + ".new", name)
        fs.sync_folder()
    return save, atomic_save(fs)[1]


def newest_first(fs):
    """What was not finished is taken for the newest."""
    def load(name):
        for each in (name + ".new", name):
            if each in fs.names():
                return fs.read(each)
    return atomic_save(fs)[0], load


def two_slots(check):
    """Writes into two files in turn; each begins with its number, and ends with a digest."""
    def answer(fs):
        def found(name):
            there = []
            for slot in (name + ".a", name + ".b"):
                if slot in fs.names():
                    number, digest, data = (fs.read(slot).split(b"\n", 2) + [b"", b""])[:3]
                    if not check or digest == hashlib.sha256(number + data).hexdigest().encode():
                        there.append((int(number or 0), slot, data))
            return max(there, default=(0, name + ".b", None))

        def save(name, data):
            number, slot, _ = found(name)
            other = name + (".a" if slot.endswith(".b") else ".b")
            text = str(number + 1).encode()
            fs.write(other, text + b"\n" + hashlib.sha256(text + data).hexdigest().encode() + b"\n" + data)
            fs.sync(other)
            fs.sync_folder()

        return save, lambda name: found(name)[2]
    return answer


def manifest(first):
    """Each save has a file of its own, and a small one says which it is."""
    def answer(fs):
        def save(name, data):
            number = int(fs.read(name).decode()) + 1 if name in fs.names() else 1
            mine = f"{name}-{number}"

            def point():
                fs.write(name + ".new", str(number).encode())
                fs.sync(name + ".new")
                fs.rename(name + ".new", name)
                fs.sync_folder()
            if first:
                point()
            fs.write(mine, data)
            fs.sync(mine)
            fs.sync_folder()
            if not first:
                point()
            if f"{name}-{number - 1}" in fs.names():
                fs.remove(f"{name}-{number - 1}")

        def load(name):
            return fs.read(f"{name}-{fs.read(name).decode()}") if name in fs.names() else None
        return save, load
    return answer


def in_memory(fs):
    """Only the first save reaches the disk."""
    memory, (first, on_disk) = {}, atomic_save(fs)

    def save(name, data):
        if name not in fs.names():
            first(name, data)
        memory[name] = data
    return save, lambda name: memory.get(name, on_disk(name))


def a_new_name_each_time(fs):
    def save(name, data):
        tmp = f"{name}.{uuid.uuid4().hex}"
        fs.write(tmp, data)
        fs.sync(tmp)
        fs.rename(tmp, name)
        fs.sync_folder()
    return save, atomic_save(fs)[1]


def refuses_what_is_there(fs, name):
    if name + ".new" in fs.names():
        raise FileExistsError(name + ".new")


def loads(change):
    def answer(fs):
        save, load = atomic_save(fs)
        return save, lambda name: change(load(name))
    return answer


def number_of(name):
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def around(places=256, number=number_of, host=True, server=True, wrap=True, count=lambda replicas: replicas + 1,
           order=list, name=lambda server, at, i: f"{server} {i}", of=lambda key, at: key):
    """An answer with one thing changed: the places, the walk around the ring, and who may not stand there twice."""
    def answer(keys, hosts, replicas):
        ring = sorted((number(name(each, at, i)), each) for at, each in enumerate(hosts) for i in range(places))
        copies = {}
        for place, key in enumerate(keys):
            start, found = bisect.bisect(ring, (number(of(key, place)), "")), []
            for step in range(start, start + len(ring)):
                if step >= len(ring) and not wrap:
                    break
                each = ring[step % len(ring)][1]
                taken = [hosts[other] for other in found] if host else found if server else []
                if len(found) < count(replicas) and (hosts[each] if host else each) not in taken:
                    found.append(each)
                if len(found) == count(replicas):
                    break
            copies[key] = order(found)
        return copies
    return answer


def remainder(keys, hosts, replicas):
    """The rest of a division says who is first, and the next ones follow."""
    servers, copies = sorted(hosts), {}
    for key in keys:
        at, found = number_of(key), []
        while len(found) <= replicas:
            each = servers[at % len(servers)]
            if hosts[each] not in [hosts[other] for other in found]:
                found.append(each)
            at += 1
        copies[key] = found
    return copies


def in_the_list(keys, hosts, replicas):
    """By their numbers in the list, on a ring."""
    return around(name=lambda server, at, i: f"{at} {i}")(keys, hosts, replicas)


def next_in_the_list(keys, hosts, replicas):
    """The first one is from the ring, and the others are those that follow by name: always the same."""
    first, servers = around()(keys, hosts, 0), sorted(hosts)
    copies = {}
    for key in keys:
        at, found = servers.index(first[key][0]), []
        while len(found) <= replicas:
            each = servers[at % len(servers)]
            if hosts[each] not in [hosts[other] for other in found]:
                found.append(each)
            at += 1
        copies[key] = found
    return copies


def a_ring_for_each(keys, hosts, replicas):
    """Each copy has a ring of its own, and where it falls on somebody who is there already, the next name is taken."""
    copies = {key: [] for key in keys}
    for copy in range(replicas + 1):
        for key, (each,) in around(of=lambda key, at, copy=copy: f"{copy} {key}")(keys, hosts, 0).items():
            servers = sorted(hosts)
            while hosts[each] in [hosts[other] for other in copies[key]]:
                each = servers[(servers.index(each) + 1) % len(servers)]
            copies[key].append(each)
    return copies


def first_by_remainder(keys, hosts, replicas):
    """Who is the first of the copies is found by a division."""
    copies = hashing(keys, hosts, replicas)
    turns = {key: number_of("first " + key) % (replicas + 1) for key in keys}
    return {key: sorted(found)[turns[key]:] + sorted(found)[:turns[key]] for key, found in copies.items()}


def drawn_anew(keys, hosts, replicas):
    copies = hashing(keys, hosts, replicas)
    return {key: random.sample(found, len(found)) for key, found in copies.items()}


def in_turn(keys, hosts, replicas):
    """Fills the servers one after the other."""
    return around(of=lambda key, at: str(at))(keys, hosts, replicas)


def few_hot(keys, hosts, replicas):
    """Fewest hosts: always the first ones by name."""
    found = []
    for each in sorted(hosts):
        if hosts[each] not in [hosts[other] for other in found] and len(found) <= replicas:
            found.append(each)
    return {key: list(found) for key in keys}


def changed_copies(change):
    return lambda keys, hosts, replicas: change(hashing(keys, hosts, replicas))


WRONG = {
    "detect": {
        "too-short": [detector(limit=lambda every, lost, delay: every),
                      detector(limit=lambda every, lost, delay: lost * every + delay),
                      detector(limit=lambda every, lost, delay: (lost + 1) * every),
                      detector(limit=lambda every, lost, delay: 0.95 * ((lost + 1) * every + delay))],
        "too-long": [detector(limit=lambda every, lost, delay: 30.0),
                     detector(limit=lambda every, lost, delay: 3 * ((lost + 1) * every + delay))],
        "wall-clocks": [detector(clock=lambda sent, now: sent)],
        "never-forgives": [detector(forgives=False)],
        "counts-messages": [counts_heartbeats],
        "counts-calls": [counts_asks],
        "one-timer": [detector(one=True)],
        "own-pause": [detector(pauses=False)],
        "waits-for-end": [detector(silent=False)],
        "ignores-end": [detector(end=False)],
        "before-first": [detector(begin=False), detector(zero=True)],
        "takes-back": [pushed_back],
        "misses-dead": [in_a_row],
        "suspects-living": [everybody_else],
        "not-nodes": [without_a_set, with_times],
        "not-three": [only_two_of_three],
        "endless": [waits_a_while],
        "nothing-returned": [lambda nodes, every, lost, delay, now: None],
        "raised": [lambda nodes, every, lost, delay, now: (print, print, lambda now: nodes[99])],
        "not-general": [lambda nodes, every, lost, delay, now: detect(nodes, every, lost, delay, now) if lost == 2 else 1 / 0],
    },
    "interval": {
        "one-device": [lambda n, hours, delta, restart: math.sqrt(2 * delta * hours * 3600),
                       lambda n, hours, delta, restart: of_daly(1, hours, delta, restart)],
        "other-unit": [lambda n, hours, delta, restart: math.sqrt(2 * delta * hours / n),
                       lambda n, hours, delta, restart: math.sqrt(2 * delta * hours * 60 / n),
                       returned(lambda work, delta, mtbf: work / 60), returned(lambda work, delta, mtbf: work / 3600)],
        "without-two": [lambda n, hours, delta, restart: math.sqrt(delta * hours * 3600 / n)],
        "adds-restart": [lambda n, hours, delta, restart: of_young(n, hours, delta + restart, restart),
                         given(lambda n, hours, delta, restart: (n, hours, delta + restart, restart))],
        "counts-save": [returned(lambda work, delta, mtbf: work + delta),
                        lambda n, hours, delta, restart: of_daly(n, hours, delta, restart) + delta],
        "delta-twice": [returned(lambda work, delta, mtbf: work - delta if work > delta else work),
                        lambda n, hours, delta, restart: max(of_daly(n, hours, delta, restart) - delta, delta / 9)],
        "young-too-far": [of_young],
        "too-often": [lambda n, hours, delta, restart: 60, returned(lambda work, delta, mtbf: work / 3)],
        "too-seldom": [lambda n, hours, delta, restart: 3600, returned(lambda work, delta, mtbf: mtbf)],
        "not-a-time": [returned(lambda work, delta, mtbf: -work), returned(lambda work, delta, mtbf: math.nan)],
        "not-a-number": [returned(lambda work, delta, mtbf: [work]), returned(lambda work, delta, mtbf: f"{work} s")],
        "nothing-returned": [lambda n, hours, delta, restart: None],
        "raised": [lambda n, hours, delta, restart: hours / (n - n)],
        "not-general": [lambda n, hours, delta, restart: interval(n, hours, delta, restart) if delta == 60 else 1 / 0],
    },
    "atomic-save": {
        "in-place": [saver(tmp=lambda name: name), saver(tmp=lambda name: name, sync=False, folder=False),
                     saver(first=True)],
        "no-sync": [saver(sync=False)],
        "rename-first": [synced_too_late],
        "no-sync-folder": [saver(folder=False), folder_before],
        "deletes-old-first": [saver(removes=True), old_one_aside],
        "same-name": [saver(tmp=lambda name: "new")],
        "loads-torn": [newest_first, two_slots(check=False)],
        "manifest-first": [manifest(first=True)],
        "leaves-rubbish": [a_new_name_each_time],
        "after-a-crash": [saver(before=refuses_what_is_there)],
        "nothing-there": [lambda fs: (atomic_save(fs)[0], fs.read), loads(lambda data: data or b"")],
        "not-found": [loads(lambda data: data and data[:9])],
        "not-bytes": [loads(str)],
        "not-two": [lambda fs: atomic_save(fs)[0]],
        "lost": [in_memory],
        "nothing-returned": [lambda fs: None],
        "raised": [lambda fs: (lambda name, data: fs.write(data, name), atomic_save(fs)[1])],
    },
    "hashing": {
        "same-server": [around(host=False, server=False)],
        "same-host": [around(host=False)],
        "modulo": [remainder],
        "too-few-copies": [around(wrap=False), around(count=lambda replicas: replicas if replicas else 1)],
        "too-many-copies": [around(count=lambda replicas: replicas + 2)],
        "moves-between": [a_ring_for_each],
        "turns-around": [first_by_remainder],
        "by-position": [in_the_list],
        "python-hash": [around(number=hash)],
        "depends-on-others": [in_turn],
        "uneven": [around(places=1), around(places=4), around(order=sorted), few_hot],
        "one-heir": [next_in_the_list],
        "changes": [drawn_anew],
        "other-keys": [changed_copies(lambda copies: dict(list(copies.items())[1:])),
                       changed_copies(lambda copies: copies | {"another": []})],
        "other-servers": [changed_copies(lambda copies: {key: [0] for key in copies})],
        "not-a-list": [changed_copies(lambda copies: {key: found[0] for key, found in copies.items()}),
                       changed_copies(lambda copies: {key: set(found) for key, found in copies.items()})],
        "not-a-dict": [changed_copies(lambda copies: list(copies.values()))],
        "nothing-returned": [lambda keys, hosts, replicas: None],
        "raised": [lambda keys, hosts, replicas: hosts[0]],
        "not-general": [lambda keys, hosts, replicas: hashing(keys, hosts, replicas) if len(hosts) > 4 else 1 / 0],
    },
}
