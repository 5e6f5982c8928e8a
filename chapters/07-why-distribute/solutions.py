"""Right answers to the exercises of this chapter, and typical wrong ones.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

import math

from d2lps.notebook.grading import edited


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


WRONG = {
    "critical-batch": {
        "proportional": [edited(critical_batch, ("slope / (steps - fewest)", "small * many / steps"))],
        "straight-line": [edited(critical_batch, (
            "slope / (steps - fewest)", "small + (large - small) * (many - steps) / (many - few)"))],
        "measured-only": [lambda measured, steps: min((batch for batch, known in measured.items() if known <= steps), default=math.inf)],
        "rounded": [edited(critical_batch, ("math.ceil(slope / (steps - fewest) - 1e-9)", "math.floor(slope / (steps - fewest) + 1e-9)"))],
        "largest-is-fewest": [edited(critical_batch, ("/ (1 / small - 1 / large)", "* small"), ("few - slope / large", "few"))],
        "no-limit": [edited(critical_batch, ("return math.inf", "return 10**9"))],
        "gives-up": [edited(critical_batch, ("steps <= fewest + 1e-9 * steps", "steps < few"))],
        "differs": [edited(critical_batch, ("return max(", "return 7 + 3 * max("))],
    },
    "break-even": {
        "failures": [edited(break_even, (" * longer", ""))],
        "stops-early": [edited(break_even, (
            "min(range(1, most + 1), key=total)", "next((n for n in range(1, most) if total(n + 1) >= total(n)), most)"))],
        "rent-of-one": [edited(break_even, ("(n * price + worth)", "(price + worth)"))],
        "fastest": [edited(break_even, ("key=total", "key=hours"))],
        "cheapest": [edited(break_even, ("(n * price + worth)", "n * price"))],
        "out-of-range": [edited(break_even, ("most + 1", "most + 2"))],
        "differs": [edited(break_even, ("return min(", "return 1 + min("))],
    },
}


RULES = {
    "critical-batch": {
        "the formula of the chapter": "straight-line",
        "its fewest steps are those of no run": "largest-is-fewest",
        "time does not fall for ever": "proportional",
        "any batch, not only those of the runs": "measured-only",
        "also a larger one": "gives-up",
        "the smallest whole batch": "rounded",
        "at most steps steps": ("math.ceil(", "math.floor("),
        "math.inf if none is large enough": "no-limit",
    },
    "break-even": {
        "1 to most": "out-of-range",
        "most, too": ("most + 1", "max(most, 2)"),
        "the least total": "stops-early",
        "more machines do not always take fewer hours": ("key=total", "key=lambda n: (n * price + worth) * hours(1) / n"),
        "each machine costs price": "rent-of-one",
        "an hour is worth something": "cheapest",
        "rent counts": "fastest",
        "failures make the job longer": "failures",
        "M is that of the job": ("life / n", "life"),
        "√(2δ/M)": ("2 * save", "save"),
    },
}
