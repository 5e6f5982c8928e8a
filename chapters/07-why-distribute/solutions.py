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


def rounded(how):
    def answer(measured, steps):
        batch = exact(measured, steps)
        return batch if batch == math.inf else max(1, how(batch))

    return answer


def largest_is_fewest(measured, steps):
    (small, many), fewest = min(measured.items()), min(measured.values())
    return math.inf if steps <= fewest else max(1, math.ceil((many - fewest) * small / (steps - fewest)))


def by_the_smallest(measured, steps):
    batch, known = min(measured.items())
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


def gives_up(measured, steps):
    return critical_batch(measured, steps) if steps >= min(measured.values()) else math.inf


def twice_as_large(measured, steps):
    batch = critical_batch(measured, steps)
    return batch if batch == math.inf else 3 * batch + 7


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


def one_too_many(hours, price, worth, life, save, most):
    return min(most, break_even(hours, price, worth, life, save, most) + 1)


WRONG = {
    "critical-batch": {
        "proportional": [by_the_smallest],
        "straight-line": [along_a_line],
        "measured-only": [among_the_measured],
        "rounded": [rounded(lambda batch: math.floor(batch + 1e-9))],
        "largest-is-fewest": [largest_is_fewest],
        "no-limit": [always_a_number],
        "gives-up": [gives_up],
        "differs": [twice_as_large],
    },
    "break-even": {
        "failures": [least(lambda n, hours, price, worth, life, save: (n * price + worth) * hours(n))],
        "stops-early": [greedy],
        "rent-of-one": [
            least(lambda n, hours, price, worth, life, save: (price + worth) * hours(n) * longer(life, save, n))
        ],
        "fastest": [least(lambda n, hours, price, worth, life, save: hours(n))],
        "cheapest": [least(lambda n, hours, price, worth, life, save: n * price * hours(n) * longer(life, save, n))],
        "out-of-range": [asks_beyond],
        "differs": [one_too_many],
    },
}
