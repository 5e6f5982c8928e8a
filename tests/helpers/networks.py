"""A network in which every kind of trouble happens, recorded."""

from d2lps.simulate import Faults, Network


class Led:
    """A node that has been told to lead, or that a message has told who leads."""

    role = ""

    def receive(self, src, message, now):
        self.role = message[1]


def troubled(**faults) -> Network:
    """Return a run of 50 ms: ``a`` leads and dies, ``b`` is paused, ``c`` is cut off from ``b``."""
    net = Network(seed=1, faults=Faults(delay=(1e-3, 2e-3), **faults))
    net.nodes |= {name: Led() for name in ("a", "b", "c")}
    net.record(lambda name, node, now: node.role)
    for i in range(10):
        net.after(5e-3 * i, net.send, "a", "b", ("role", f"follower {i}"))
        net.after(5e-3 * i, net.send, "c", "b", ("other", "candidate 2"))
    net.send("b", "a", ("role", "leader 1"))
    net.after(12e-3, net.pause, "b", 9e-3)
    net.after(22e-3, net.cut, "c", "b", 8e-3)
    net.after(40e-3, net.crash, "a")
    net.run(until=50e-3)
    return net
