"""Benchmarks: ``python -m benchmarks`` measures this machine, ``python -m benchmarks.check`` sees that each still runs.

``__main__.py`` knows the rows of every file, ``common.py`` has what several files share, ``measured/`` keeps figures.
"""

import sys
from pathlib import Path

# For tests/helpers; last, because the folder tests/course must not hide course/.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
