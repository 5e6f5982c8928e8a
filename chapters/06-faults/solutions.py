"""The solutions of this chapter's exercises, and typical wrong answers, each with its mistake.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

import math
import uuid

from d2lps.notebook.grading import edited


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


def of_young(n, hours, delta, restart):
    return math.sqrt(2 * delta * hours * 3600 / n)


WRONG = {
    "detect": {
        "too-short": [edited(detect, ("(lost + 1) * every", "lost * every"))],
        "too-long": [edited(detect, ("(lost + 1) * every + delay", "30.0"))],
        "wall-clocks": [edited(detect, ("last[node] = now", "last[node] = sent"))],
        "never-forgives": [edited(detect, ("        suspected.discard(node)\n", ""))],
        "one-timer": [edited(detect, ("last[node] = now", "last.update(dict.fromkeys(nodes, now))"))],
        "own-pause": [edited(detect, ("if now - asked > every", "if False"))],
        "before-first": [edited(detect, ("dict.fromkeys(nodes, now), now", "dict.fromkeys(nodes, 0.0), now"))],
        "differs": [edited(detect, ("suspected.add(node)", "pass"))],
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
        "in-place": [edited(atomic_save, ('write(name + ".new"', 'write(name + ".data"'), ('sync(name + ".new"', 'sync(name + ".data"'),
                            ('fs.rename(name + ".new", name + ".data")', "pass"))],
        "no-sync": [edited(atomic_save, ('fs.sync(name + ".new")', "pass"))],
        "no-sync-folder": [edited(atomic_save, ("fs.sync_folder()", "pass"))],
        "deletes-old-first": [edited(atomic_save, (
            "        fs.rename(", '        if name + ".data" in fs.names():\n            fs.remove(name + ".data")\n        fs.rename('))],
        "same-name": [edited(atomic_save, ("save(name, data):", 'save(whole, data):\n        name = "next"'),
                             (', name + ".data")', ', whole + ".data")'))],
        "load-writes": [edited(atomic_save, ("def load(name):", 'def load(name):\n        if name + ".new" in fs.names():'
                                             '\n            fs.remove(name + ".new")'))],
        "leaves-rubbish": [edited(atomic_save, ("save(name, data):", "save(whole, data):\n        name = whole + uuid.uuid4().hex"),
                                  (', name + ".data")', ', whole + ".data")'))],
        "differs": [edited(atomic_save, ("def load(name):", 'def load(name):\n        if name + ".new" in fs.names():'
                                         '\n            return fs.read(name + ".new")'))],
        "wrong-type": [lambda fs: atomic_save(fs)[0]],
    },
}


RULES = {
    "detect": {
        "three functions": "wrong-type",
        "silence begins with detect": "before-first",
        "the longest silence of a living node": "too-short",
        "by your own clock, not by sent": "wall-clocks",
        "suspected after twice the longest silence": "too-long",
        "each node by itself": "one-timer",
        "suspected at once when its connection has ended": "differs",
        "no longer when it is heard": "never-forgives",
        "questions come at irregular times": (
            ("limit = (lost + 1) * every + delay", "limit, ticks = (lost + 1) * every + delay, [now]"), ("last[node] = now", "last[node] = ticks[0]"),
            ("asked = now\n", "asked = now\n        ticks[0] += every\n"), ("if now - last[node]", "if ticks[0] - last[node]")),
        "your own stop is no silence": "own-pause",
        "also before the first question": ("dict.fromkeys(nodes, now), now, set()", 'dict.fromkeys(nodes, now), float("inf"), set()'),
        "more than every seconds are a stop": ("if now - asked > every", "if now - asked > 2 * every"),
        "every seconds are none": ("if now - asked > every", "if now - asked >= every"),
        "who was suspected before stays so": ("last.update(dict.fromkeys(nodes, now))", "last.update(dict.fromkeys(nodes, now))\n            suspected.clear()"),
    },
    "interval": {
        "seconds": "other-unit",
        "n devices fail": "one-device",
        "a save takes delta": "without-two",
        "the restart is the same for every interval": "adds-restart",
        "from the end of a save to the next": ("return low", "return delta + low"),
        "at most 2% more than the best": "too-seldom",
        "nor too often": "too-often",
        "a save may take long": "young-too-far",
        "a number": "wrong-type",
        "of work": "differs",
    },
    "atomic-save": {
        "save and load": "wrong-type",
        "nothing was saved: None": ("else None", 'else b""'),
        "a write may be cut": "in-place",
        "what is not synced may be lost": "no-sync",
        "names, too": "no-sync-folder",
        "the last data, or those being saved": "deletes-old-first",
        "not what is not yet saved": "differs",
        "also for another process that loads": "load-writes",
        "each time": (("    def save(name, data):", "    had = {}\n\n    def save(name, data):\n        had[name] = data"),
                      ('return fs.read(name + ".data")', 'return had[name] if name in had else had.setdefault(name, fs.read(name + ".data"))')),
        "different names at the same time": "same-name",
        "whatever the names": (('fs.write(name + ".new"', 'fs.write("new" + name[-1]'), ('fs.sync(name + ".new"', 'fs.sync("new" + name[-1]'),
                               ('fs.rename(name + ".new"', 'fs.rename("new" + name[-1]')),
        "any bytes, even none": ('return fs.read(name + ".data")', 'return (fs.read(name + ".data") or None)'),
        "crashes leave no more and more files": "leaves-rubbish",
    },
}
