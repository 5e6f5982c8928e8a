"""One sentence for those who do not see a picture: what runs there, how long it takes, and who is waited for.

>>> from d2lps import aggregate_at, cost, pcie_server
>>> from d2lps.view.drawing.scene import Scene
>>> gpus = ["gpu0", "gpu1", "gpu2", "gpu3"]
>>> described(Scene(cost.shared(aggregate_at(gpus, "gpu0"), pcie_server(), "160 MB")), "at GPU 0")
'at GPU 0: 6 messages in 2 steps take 60 ms; everything waits for switch→gpu0, then gpu0→switch.'
"""

from d2lps.messages import text
from d2lps.units import show_seconds, show_size
from d2lps.view.drawing.lanes import Lanes
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.svg import escape, tag
from d2lps.view.drawing.traffic import reason


def described(scene: "Scene | Lanes", what: str) -> str:
    """Return the sentence of a run: ``what`` it is, its messages or tasks, its time, and the reason for it."""
    if isinstance(scene, Lanes):
        return _of_lanes(scene, what)
    trace, (full, decides) = scene.trace, reason(scene.load, scene.trace.duration)
    why = (scene.losses[-1][1] if scene.losses else decides) or full
    counts = {"messages": len(scene.motion.messages), "steps": trace.steps, "time": show_seconds(trace.duration)}
    return text("described.run", what=what, **counts, why=why) if why else text("described.plain", what=what, **counts)


def told(svg: str, sentence: str) -> str:
    """Return a picture with the sentence as its description."""
    return svg.replace("</title>", f"</title>{tag('desc', escape(sentence))}", 1)


def _of_lanes(scene: Lanes, what: str) -> str:
    works = dict.fromkeys(range(len(scene.nodes)), 0.0)
    for task in scene.tasks:
        works[task.row] += task.end - task.start
    rests, fullest = min(works, key=works.get), max(scene.peaks, key=scene.peaks.get)
    even = max(works.values()) - works[rests] <= 0.01 * scene.duration
    why = text("described.even") if even else text("described.rests", node=scene.nodes[rests])
    time = f"{round(scene.duration)}" if scene.slots else show_seconds(scene.duration)
    peak = scene.peaks[fullest]
    memory = text("described.memory", node=fullest, peak=show_size(peak)) if peak else ""
    reasons = text("described.between").join(filter(None, [scene.bubble(), why, memory]))
    return text("described.lanes", what=what, tasks=len(scene.tasks), time=time, why=reasons)
