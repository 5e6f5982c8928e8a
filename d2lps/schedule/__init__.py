"""Schedules: what every device computes, sends and keeps, for models that are cut into pieces.

A plan says how one buffer travels; a schedule says who computes what, on which values, in which order. It is checked,
costed, run and drawn like a plan. Start at ``schedule`` (the class, its table and ``merge``), then ``checking`` (what
acts do to values, and memory). ``acts`` defines Task, Value and Collective; ``pipelines`` writes GPipe, 1F1B,
interleaved and zero-bubble schedules, ``operators`` the schedules of models cut inside or between operators,
``sharded`` those of ZeRO, ``context`` those of one attention over many tokens, and ``reading`` reads the tables that
torch and torchtitan print.
"""

from d2lps.schedule.acts import Collective, ScheduleError, Task, Value
from d2lps.schedule.context import attention, seen_pairs, token_places
from d2lps.schedule.operators import hybrid, place, tensor_mlp
from d2lps.schedule.pipelines import gpipe, interleaved, one_f_one_b, pipeline, zero_bubble
from d2lps.schedule.reading import from_csv, from_torch
from d2lps.schedule.schedule import Schedule, merge
from d2lps.schedule.sharded import fully_sharded, zero

__all__ = [
    "Collective",
    "Schedule",
    "ScheduleError",
    "Task",
    "Value",
    "attention",
    "from_csv",
    "from_torch",
    "fully_sharded",
    "gpipe",
    "hybrid",
    "interleaved",
    "merge",
    "one_f_one_b",
    "pipeline",
    "place",
    "seen_pairs",
    "tensor_mlp",
    "token_places",
    "zero",
    "zero_bubble",
]
