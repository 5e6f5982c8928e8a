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


def of_whole_numbers(measured, steps):
    fewest, slope = formula(measured)
    fewest, critical = round(fewest), round(slope / fewest)
    return math.inf if steps <= fewest + 1e-9 * steps else math.ceil(fewest * critical / (steps - fewest) - 1e-9)


def within(lowest, highest):
    """The right batch, but not below the smallest measured one, or not above a multiple of the largest."""

    def answer(measured, steps):
        batch = critical_batch(measured, steps)
        lower, upper = lowest * min(measured), highest * max(measured)
        return batch if batch == math.inf else max(lower, min(upper, batch))

    return answer


def unguarded(measured, steps):
    fewest, slope = formula(measured)
    return max(1, math.ceil(slope / (steps - round(fewest, 6)) - 1e-9))


def largest_is_fewest(measured, steps):
    (small, many), fewest = min(measured.items()), min(measured.values())
    return math.inf if steps <= fewest else max(1, math.ceil((many - fewest) * small / (steps - fewest)))


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


def ternary(hours, price, worth, life, save, most):
    def total(n):
        return (n * price + worth) * hours(n) * longer(life, save, n)

    low, high = 1, most
    while high - low > 2:
        third = (high - low) // 3
        low, high = (low, high - third) if total(low + third) < total(high - third) else (low + third, high)
    return min(range(low, high + 1), key=total)


def in_eights(hours, price, worth, life, save, most):
    def total(n):
        return (n * price + worth) * hours(n) * longer(life, save, n)

    near = min(range(1, most + 1, 8), key=total)
    return min(range(max(1, near - 8), min(most, near + 8) + 1), key=total)


def patient(hours, price, worth, life, save, most):
    """Stops after 16 machines without a gain."""
    best, least = 1, math.inf
    for n in range(1, most + 1):
        total = (n * price + worth) * hours(n) * longer(life, save, n)
        if total < least:
            best, least = n, total
        elif n - best > 16:
            break
    return best


def loses(part):
    """What failures add is ``part(δ, M)``, for the life of one machine and n machines."""
    return least(lambda n, hours, price, worth, life, save: (n * price + worth) * hours(n) * (1 + part(save, life, n)))


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
        "measured-only": [among_the_measured, within(1, math.inf)],
        "rounded": [
            rounded(lambda batch: math.ceil(batch - 1e-9) - 1),
            rounded(lambda batch: math.floor(batch + 1e-9)),
            rounded(lambda batch: math.floor(batch + 1e-9) + 1),
            rounded(round),
        ],
        "largest-is-fewest": [
            largest_is_fewest,
            lambda measured, steps: (
                math.ceil(formula(measured)[1] / (steps - min(measured.values()))) if steps > min(measured.values()) else math.inf
            ),
        ],
        "no-limit": [always_a_number, never_below_the_fewest, unguarded],
        "gives-up": [gives_up, lambda measured, steps: math.inf],
        "not-a-batch": [a_text, rounded(lambda batch: batch + 0.25), lambda measured, steps: [1]],
        "other": [twice_as_large],
        "not-general": [of_whole_numbers, within(0, 16)],
    },
    "break-even": {
        "todo": [lambda hours, price, worth, life, save, most: 0],
        "failures": [
            loses(lambda save, life, n: 0),
            loses(lambda save, life, n: math.sqrt(2 * save / life)),
            loses(lambda save, life, n: math.sqrt(2 * save / (life * n))),
            loses(lambda save, life, n: math.sqrt(save * n / life)),
            loses(lambda save, life, n: 2 * save * n / life),
        ],
        "stops-early": [greedy, ternary, in_eights, patient],
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
