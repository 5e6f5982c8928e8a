"""What a server says that could not do what it was asked."""

from collections.abc import Sequence

from d2lps.kvstore.errors import BeingLoaded, Diverged, KVError, Late, Refused, Timeout, WorkerLost

KINDS = {each.__name__: each for each in (Refused, Timeout, Late, BeingLoaded)}  # beside WorkerLost and Diverged


def counted(entries: Sequence, metadata: dict) -> bool | None:
    """What an error says of a push of ``entries``: that all of them are counted, or none; else it is not known."""
    places = metadata.get("counted") or ()
    return None if 0 < len(places) < len(entries) else bool(places)


def as_error(metadata: dict) -> KVError:
    """What the server says, as the error that it names; a name that is none of ours is no class of ours."""
    sentence, kind = str(metadata.get("sentence", "")), metadata.get("kind")
    if kind == "WorkerLost":
        return WorkerLost(sentence, tuple(rank for rank in metadata.get("ranks", ()) if isinstance(rank, int)))
    if kind == "Diverged":
        return Diverged(sentence, tuple(metadata.get("servers", ())), tuple(metadata.get("keys", ())))
    return KINDS.get(kind, KVError)(sentence)
