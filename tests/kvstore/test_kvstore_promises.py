"""What a push that raises promises: which keys count, and that the same call again counts each of them once.

The machine pushes and pulls at real servers, is interrupted at moments that nobody chose, and compares with sums.
"""

import os
import signal

import pytest
import torch
from helpers.stores import each
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from d2lps import kvstore
from d2lps.kvstore import Placement, Refused, Timeout, Unknown

SIZES = {"small": 7, "cut": 2_000, "large": 40_000, "other": 3}  # of cut and large each server has a part
EXAMPLES = int(os.environ.get("D2LPS_EXAMPLES", "20"))  # of 50 steps each
UNTOUCHED = -7.0


class Model:
    """What is known of a key: the sum of worker 0's counted pushes, how many those are, and what may be counted."""

    def __init__(self):
        self.total, self.pushes, self.partner, self.open = 0.0, 0, 0, None

    def count(self, value):
        self.total, self.pushes = self.total + value, self.pushes + 1


class Promises(RuleBasedStateMachine):
    """One worker that is interrupted now and then, and one, where ``kind`` has rounds, that closes them with zeros."""

    kind = "dist_async"

    @initialize(transport=st.sampled_from(["unix", "tcp"]))
    def begin(self, transport):
        synchronous = self.kind == "dist_sync"
        self.cluster = kvstore.cluster(
            self.kind,
            1 + synchronous,
            2,
            transport=transport,
            nan="reject",
            deadline=0.4 if synchronous else 5.0,
            placement=Placement(2, large=1000),
        )
        names = list(SIZES)
        firsts = [torch.zeros(size) for size in SIZES.values()]
        each(self.cluster, lambda store: (store.init(names, firsts), store.set_optimizer("sgd", lr=-1.0)))
        self.store, self.models = self.cluster[0], {name: Model() for name in names}
        self.next, self.failed, self.left_alone = 1.0, None, []

    def teardown(self):
        if hasattr(self, "cluster"):
            self.require_untouched()
            self.cluster.close()

    # ---- what is done

    @rule(
        keys=st.lists(st.sampled_from(list(SIZES)), min_size=1, unique=True), how=st.sampled_from(["push", "out", "in"])
    )
    def push(self, keys, how):
        self.run(*self.another(keys, how))

    @rule(
        keys=st.lists(st.sampled_from(list(SIZES)), min_size=1, unique=True),
        how=st.sampled_from(["push", "out", "in"]),
        after=st.floats(1e-5, 4e-3),
    )
    def push_interrupted(self, keys, how, after):
        self.run(*self.another(keys, how), after=after)

    @rule(after=st.none() | st.floats(1e-5, 4e-3))
    def the_same_again(self, after):
        if self.failed is not None:
            self.run(*self.failed, after=after)

    @rule(keys=st.lists(st.sampled_from(list(SIZES)), min_size=1, unique=True), bad=st.integers(0, 3))
    def push_what_is_not_finite(self, keys, bad):
        values = [torch.full((SIZES[key],), 1.0) for key in keys]
        values[bad % len(keys)][-1] = float("nan")
        with pytest.raises(Refused) as refused:
            self.store.push(keys, values)
        assert (refused.value.counted, refused.value.unknown) == ((), ())
        self.failed = None

    @rule()
    def close_rounds(self):
        for key, model in self.models.items():
            if self.waits(model) and model.open is None:
                self.cluster[1].push(key, torch.zeros(SIZES[key]))
                model.partner += 1

    @rule(key=st.sampled_from(list(SIZES)), after=st.none() | st.floats(1e-5, 2e-3))
    def pull(self, key, after):
        model = self.models[key]
        if model.open is not None or self.waits(model):
            return
        out = torch.full((SIZES[key],), UNTOUCHED)
        self.forget_failed([key])
        try:
            self.interrupt(after, lambda: self.store.pull(key, out=out))
        except KeyboardInterrupt:
            self.leave_alone([out])
        else:
            assert out.unique().tolist() == [model.total]

    # ---- how it is done, and what must hold

    def another(self, keys, how):
        """A push of values that no other push has."""
        values = []
        for key in keys:
            values.append(torch.full((SIZES[key],), self.next))
            self.next += 1
        outs = {"push": None, "in": values, "out": [torch.full((SIZES[key],), UNTOUCHED) for key in keys]}[how]
        return keys, values, outs, {}

    def run(self, keys, values, outs, done, after=None):
        """Push ``values``, of which those of the keys in ``done`` count already."""
        pushed = [value[0].item() for value in values]
        call = (
            (lambda: self.store.push(keys, values)) if outs is None else lambda: self.store.pushpull(keys, values, outs)
        )
        if not done:
            self.forget_failed(keys)
        error = None
        try:
            self.interrupt(after, call)
        except (KeyboardInterrupt, Timeout, Unknown) as raised:
            error = raised
            assert isinstance(raised, KeyboardInterrupt) or self.kind == "dist_sync", raised
        counted = {*getattr(error, "counted", done)} if error else {*keys}
        unknown = {*getattr(error, "unknown", ())} if error else set()
        assert not counted & unknown and done.keys() <= counted | unknown
        for key, value in zip(keys, pushed, strict=True):
            model = self.models[key]
            if key in counted | unknown:
                if model.open not in (None, value):  # another push first brings it to its end
                    model.count(model.open)
                if key in counted and key not in done:
                    model.count(value)
                model.open = value if key in unknown else None
            elif model.open == value and isinstance(error, Timeout):
                model.open = None  # all servers say that it is not counted
        if error is None:
            self.failed = None
            for key, out in zip(keys, outs or (), strict=bool(outs)):
                assert out.unique().tolist() == [self.models[key].total]
            return
        overwritten = any(value[0].item() != before for value, before in zip(values, pushed, strict=True))
        if counted and not overwritten:
            self.failed = keys, values, outs, dict.fromkeys(counted)
        else:
            self.failed = None
        if outs is not None and outs is not values:
            self.leave_alone(outs)
            if self.failed:
                self.failed = keys, values, [torch.empty_like(out) for out in outs], dict.fromkeys(counted)

    def interrupt(self, after, call):
        """``call()``, which Ctrl-C ends after so many seconds, unless it has returned before."""
        if after is None:
            call()
            return
        armed = [True]

        def ring(*_):
            if armed:
                armed.clear()
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, ring)
        try:
            signal.setitimer(signal.ITIMER_REAL, after)
            call()
            armed.clear()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def waits(self, model):
        return self.kind == "dist_sync" and model.partner < model.pushes

    def forget_failed(self, keys):
        if self.failed and {*keys} & {*self.failed[0]}:
            self.failed = None

    def leave_alone(self, outs):
        """Whoever was interrupted goes on with its tensors: nobody else writes there any more."""
        self.require_untouched()
        for out in outs:
            out.fill_(UNTOUCHED)
        self.left_alone = outs

    def require_untouched(self):
        for out in self.left_alone:
            assert (out == UNTOUCHED).all(), "written after the call was interrupted"


class SynchronousPromises(Promises):
    kind = "dist_sync"


@pytest.mark.slow(15)
@pytest.mark.alone
@pytest.mark.fault("F15", "interrupted at any moment, then the same call or another: 2,000 steps against a model")
@pytest.mark.parametrize("machine", [Promises, SynchronousPromises])
def test_every_push_counts_once_whatever_interrupts_it(machine):
    # Nothing is shrunk: the moments are not the same again.
    steps = settings(max_examples=EXAMPLES, stateful_step_count=50, phases=[Phase.generate])
    run_state_machine_as_test(machine, settings=steps)
