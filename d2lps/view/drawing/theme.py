"""All colors: those of sixteen workers, and the two themes.

The workers' colors are distinct for the three common kinds of color blindness (the first five by more than 15 and the
first eight by more than 10 in OKLab × 100), in each theme; and a worker's slot always has the same place in a cell, so
that color alone never carries information. Only the bottleneck link has the warm color. A color with too little
contrast to an empty cell, such as a light one on white paper, gets a darker rim.
"""

import re
from pathlib import Path
from string import Template

_ON_LIGHT = """
#1952af #fab72a #21d1ca #992154 #2c94b0 #7c6f1e #7e55f0 #8aab67
#948739 #9283dc #c493e8 #e9a8f8 #d71f75 #b1bf8c #5c5c01 #e356a2
"""
_ON_DARK = """
#1961d3 #e5af00 #6df0e6 #c42a62 #4db5cb #a5852f #9377fc #c3dd93
#bfbb6e #737abc #df95fc #e7b6f3 #f00580 #d6eec5 #77771a #ea6fa1
"""
WORKERS = tuple(zip(_ON_LIGHT.split(), _ON_DARK.split(), strict=True))  # light theme, dark theme

THEME = {
    "paper": ("#ffffff", "#15181d"),
    "ink": ("#1c2230", "#e9ecf2"),
    "soft": ("#5d6778", "#a0a9b8"),
    "edge": ("#b9c1ce", "#4a5260"),
    "lane": ("#8791a2", "#6f7b90"),
    "box": ("#f8f9fc", "#1d2128"),
    "well": ("#e8ebf2", "#2a2f38"),
    "busy": ("#8490a4", "#717e95"),
    "flow": ("#35618f", "#8db4e6"),
    "warm": ("#e4530a", "#ff8243"),
    "band": ("#f1f3f8", "#1f232b"),
    "accent": ("#1952af", "#7fb0ff"),
}
ENOUGH = 3.0  # the least contrast of a mark


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colors as WCAG defines it: from 1 to 21."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def rim(color: str, theme: int) -> str:
    """Mix a color with just enough ink to stand out from an empty cell."""
    ink, well = THEME["ink"][theme], THEME["well"][theme]
    pairs = [[int(mixed[i : i + 2], 16) for mixed in (color, ink)] for i in (1, 3, 5)]
    mixes = ("#" + "".join(f"{round(a + (b - a) * part / 100):02x}" for a, b in pairs) for part in range(101))
    return next(mix for mix in mixes if contrast(mix, well) >= ENOUGH)


RIMS = tuple(tuple(rim(color, theme) for theme, color in enumerate(pair)) for pair in WORKERS)
COLORS = [light for light, _ in WORKERS]
LIGHT = {name: light for name, (light, _) in THEME.items()}

_PAIRS = THEME | {f"w{i}": pair for i, pair in enumerate(WORKERS)}
_RIMS = {f"r{i}": pair for i, pair in enumerate(RIMS) if pair != WORKERS[i]}
_LIGHT = ";".join(f"--d2-{name}:{light}" for name, (light, _) in _PAIRS.items())
_BOTH = ";".join(f"--d2-{name}:light-dark({light},{dark})" for name, (light, dark) in (_PAIRS | _RIMS).items())
_FONT = 'system-ui,"Segoe UI",Roboto,"DejaVu Sans","Noto Sans","Noto Sans CJK SC","PingFang SC",sans-serif'

# A drawing is complete with its presentation attributes alone. The CSS adds the theme of the page around it and keeps
# words readable in small pictures: --d2-zoom is the number of its units in a pixel. Shapes too thin for a rim have
# --d2-rim: 0.
_CSS = Template((Path(__file__).parent / "drawing.css").read_text("utf-8"))
_FILLS = "".join(f".d2-{name}{{fill:var(--d2-{name})}}" for name in _PAIRS)
_FILLS += "".join(f".d2-w{name[1:]}{{stroke:var(--d2-{name})}}" for name in _RIMS)
_FILLS += ",".join(f".d2-w{name[1:]}" for name in _RIMS)
_FILLS += "{stroke-width:var(--d2-rim,.8);vector-effect:non-scaling-stroke}"
STYLE = _CSS.substitute(LIGHT=_LIGHT, BOTH=_BOTH, FONT=_FONT, FILLS=_FILLS)
_FILLED = re.compile(rf'(class="(?:[^"]* )?d2-(?:{"|".join(_PAIRS)})(?: [^"]*)?") fill="[^"]*"')

# Further rules for pictures whose links have parallel lines, are in the background, or are as wide as their loads. They
# outweigh the rules above, which another picture on the same page may repeat.
THIN = """.d2-lane.d2-thin{stroke:var(--d2-edge)}.d2-faint{--d2-wide:1}
.d2-lane.d2-thin.d2-thin{stroke-width:var(--d2-wide);stroke-dasharray:none}
.d2-lane.d2-thin:not(.d2-faint),.d2-link .d2-lane.d2-thin:not(.d2-faint){stroke:var(--d2-lane)}
.d2-point,.d2-link .d2-point{fill:var(--d2-lane)}
.d2-busy .d2-lane.d2-thin.d2-thin{stroke:var(--d2-flow)}.d2-busy .d2-point{fill:var(--d2-flow)}
.d2-busy:not(.d2-fast) .d2-lane.d2-thin.d2-thin{stroke-width:calc(.5*var(--d2-wide))}
.d2-decides .d2-lane.d2-thin.d2-thin{stroke:var(--d2-warm);stroke-width:calc(1.6*var(--d2-wide))}
.d2-decides .d2-point{fill:var(--d2-warm)}
:is(.d2-busy,.d2-decides) .d2-lane.d2-load.d2-load.d2-load{stroke-width:var(--d2-wide)}
"""


def styled(svg: str) -> str:
    """Remove from a drawing the fills that STYLE gives, for a page that has it once."""
    return _FILLED.sub(r"\1", svg)
