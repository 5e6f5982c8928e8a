"""D2L's own helpers: ``from d2lps import d2l`` gives ``d2l.Timer``, ``d2l.plot``, ``d2l.try_all_gpus`` …

``d2l.torch`` imports torchvision, although it needs it only for downloads, and PyPI has it only for CUDA builds of
torch. If torchvision is missing or broken, a placeholder stands in for it while d2l is imported; functions of d2l that
need torchvision then fail with a clear message, and everything else works. Without d2l itself, which needs an old NumPy
and so Python 3.11, ``d2l_own`` has the helpers that the course uses.
"""

import importlib
import importlib.util
import sys
from types import ModuleType


class _Missing(ModuleType):
    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(f"{self.__name__}.{name} is needed here, and torchvision cannot be imported: {self.__doc__}")


def _import_d2l() -> ModuleType:
    try:
        there = importlib.util.find_spec("d2l")
    except ValueError:  # sys.modules has None for it
        there = None
    if there is None:
        return importlib.import_module("d2lps.notebook.d2l_own")
    try:
        import torchvision  # noqa: F401
    except Exception as error:  # a build for another torch fails with errors of every kind
        broken = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "torchvision"}
        transforms = _Missing("torchvision.transforms", str(error))
        torchvision = _Missing("torchvision", str(error))
        torchvision.transforms = transforms
        for name in broken:
            del sys.modules[name]
        sys.modules |= {"torchvision": torchvision, "torchvision.transforms": transforms}
        try:
            return importlib.import_module("d2l.torch")
        finally:  # other importers of torchvision must not get the placeholder
            del sys.modules["torchvision"], sys.modules["torchvision.transforms"]
    return importlib.import_module("d2l.torch")


d2l = _import_d2l()
