"""A function of an answer that runs in another process: what a judge asks of it besides calling it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable


class Away(ABC):
    """Stands for a function in another process; calling it calls that."""

    @abstractmethod
    def __call__(self, *arguments: object, **named: object) -> object: ...

    @abstractmethod
    def size_kept(self, without: Iterable[object]) -> int:
        """As :func:`~d2lps.notebook.grading.size_kept`, of the function over there."""

    @abstractmethod
    def shared_names(self, other: object, names: Iterable[str]) -> set[str]:
        """As :func:`~d2lps.notebook.grading.shared_names`, of two functions over there."""

    @abstractmethod
    def elsewhere(self, *arguments: object) -> object:
        """As :func:`~d2lps.notebook.grading.elsewhere`: what it is in a third process."""
