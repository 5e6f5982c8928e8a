"""The interface of an answer that runs in another process, for judges that do more than call it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable


class Away(ABC):
    """A function in another process; calling this object calls it."""

    @abstractmethod
    def __call__(self, *arguments: object, **named: object) -> object: ...

    @abstractmethod
    def size_kept(self, without: Iterable[object]) -> int:
        """Do the same as :func:`~d2lps.notebook.grading.size_kept` in the other process."""

    @abstractmethod
    def shared_names(self, other: object, names: Iterable[str]) -> set[str]:
        """Do the same as :func:`~d2lps.notebook.grading.shared_names` in the other process."""

    @abstractmethod
    def elsewhere(self, *arguments: object) -> object:
        """Do the same as :func:`~d2lps.notebook.grading.elsewhere`, in a third process."""
