"""Right answers to the exercises of this chapter, and typical wrong ones.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""

import math


def critical_batch(measured, steps):
    (small, many), (large, few) = min(measured.items()), max(measured.items())
    slope = (many - few) / (1 / small - 1 / large)
    fewest = few - slope / large
    if steps <= fewest + 1e-9 * steps:
        return math.inf
    return max(1, math.ceil(slope / (steps - fewest) - 1e-9))


def break_even(hours, price, worth, life, save, most):
    def total(n):
        longer = 1 + math.sqrt(2 * save / (life / n))
        return (n * price + worth) * hours(n) * longer

    return min(range(1, most + 1), key=total)


# What learners write instead. Each answer does one thing wrong.


def formula(measured):
    (small, many), (large, few) = min(measured.items()), max(measured.items())
    slope = (many - few) / (1 / small - 1 / large)
    return few - slope / large, slope


def exact(measured, steps):
    fewest, slope = formula(measured)
    return slope / (steps - fewest) if steps > fewest + 1e-9 * steps else math.inf


def down(measured, steps):
    batch = exact(measured, steps)
    return batch if batch == math.inf else max(1, math.ceil(batch - 1e-9) - 1)


def floored(measured, steps):
    batch = exact(measured, steps)
    return batch if batch == math.inf else max(1, math.floor(batch + 1e-9))


def strictly(measured, steps):
    batch = exact(measured, steps)
    return batch if batch == math.inf else max(1, math.floor(batch + 1e-9) + 1)


def not_whole(measured, steps):
    batch = exact(measured, steps)
    return batch if batch == math.inf else max(1, batch + 0.25)


def by_the_smallest(measured, steps):
    batch, known = min(measured.items())
    return max(1, math.ceil(batch * known / steps))


def by_the_largest(measured, steps):
    batch, known = max(measured.items())
    return max(1, math.ceil(batch * known / steps))


def along_a_line(measured, steps):
    fewest, _ = formula(measured)
    if steps <= fewest + 1e-9 * steps:
        return math.inf
    (a, many), (b, few) = min(measured.items()), max(measured.items())
    return max(1, math.ceil(a + (b - a) * (many - steps) / (many - few)))


def among_the_measured(measured, steps):
    return min((batch for batch, known in measured.items() if known <= steps), default=math.inf)


def always_a_number(measured, steps):
    fewest, slope = formula(measured)
    room = steps - fewest
    return max(1, math.ceil(slope / room - 1e-9)) if abs(room) > 1e-9 * steps else 10**9


def never_below_the_fewest(measured, steps):
    batch = critical_batch(measured, steps)
    return max(measured) if batch == math.inf else batch


def gives_up(measured, steps):
    return critical_batch(measured, steps) if steps >= min(measured.values()) else math.inf


def the_critical(measured, steps):
    fewest, slope = formula(measured)
    return math.inf if steps <= fewest + 1e-9 * steps else round(slope / fewest)


def twice_as_large(measured, steps):
    batch = critical_batch(measured, steps)
    return batch if batch == math.inf else 3 * batch + 7


def a_text(measured, steps):
    return str(critical_batch(measured, steps))


def least(total):
    def answer(hours, price, worth, life, save, most):
        return min(range(1, most + 1), key=lambda n: total(n, hours, price, worth, life, save))

    return answer


def longer(life, save, n):
    return 1 + math.sqrt(2 * save * n / life)


def greedy(hours, price, worth, life, save, most):
    def total(n):
        return (n * price + worth) * hours(n) * longer(life, save, n)

    n = 1
    while n < most and total(n + 1) < total(n):
        n += 1
    return n


def asks_beyond(hours, price, worth, life, save, most):
    return min(range(1, most + 2), key=lambda n: (n * price + worth) * hours(n) * longer(life, save, n))


def counts_from_zero(hours, price, worth, life, save, most):
    totals = [(n * price + worth) * hours(n) * longer(life, save, n) for n in range(1, most + 1)]
    return totals.index(min(totals)) + most + 1


def the_total(hours, price, worth, life, save, most):
    return min((n * price + worth) * hours(n) * longer(life, save, n) for n in range(1, most + 1)) + 0.5


def as_text(hours, price, worth, life, save, most):
    return str(break_even(hours, price, worth, life, save, most))


def one_too_many(hours, price, worth, life, save, most):
    return min(most, break_even(hours, price, worth, life, save, most) + 1)


WRONG = {
    "critical-batch": {
        "todo": [lambda measured, steps: 0],
        "proportional": [by_the_smallest, by_the_largest],
        "straight-line": [along_a_line],
        "measured-only": [among_the_measured],
        "rounded-down": [down, floored],
        "strict": [strictly],
        "not-whole": [not_whole],
        "no-limit": [always_a_number, never_below_the_fewest],
        "gives-up": [gives_up, lambda measured, steps: math.inf],
        "critical-itself": [the_critical],
        "not-a-batch": [a_text, lambda measured, steps: [1]],
        "other": [twice_as_large],
    },
    "break-even": {
        "todo": [lambda hours, price, worth, life, save, most: 0],
        "no-failures": [
            least(lambda n, hours, price, worth, life, save: (n * price + worth) * hours(n)),
            least(lambda n, hours, price, worth, life, save: (n * price + worth) * hours(n) * longer(life, save, 1)),
        ],
        "stops-early": [greedy],
        "rent-of-one": [
            least(lambda n, hours, price, worth, life, save: (price + worth) * hours(n) * longer(life, save, n))
        ],
        "fastest": [
            least(lambda n, hours, price, worth, life, save: hours(n)),
            lambda hours, price, worth, life, save, most: most,
        ],
        "cheapest": [
            least(lambda n, hours, price, worth, life, save: n * price * hours(n) * longer(life, save, n)),
            lambda hours, price, worth, life, save, most: 1,
        ],
        "out-of-range": [asks_beyond, counts_from_zero],
        "not-a-count": [the_total, as_text],
        "other": [one_too_many],
    },
}
