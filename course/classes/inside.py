"""The answer's end of the line: it runs cells, calls what they define, and tells what came of it. It judges nothing."""

import ast
import builtins
import errno
import inspect
import os
import socket
import threading
import traceback
import weakref
from collections import deque
from itertools import count, islice
from types import FunctionType

import torch

from course.classes import values
from course.classes.line import Gone, Line
from course.classes.values import plan_fields, read, written
from d2lps import PlanError, Reduction, Trace
from d2lps.notebook.grading import shared_names, size_kept

WATCHED = 32  # tensors that are held on to, so that a change is seen even if the answer keeps only a part of them
MOST = 100_000  # things that are taken out of one that gives them one after the other
AT_ONCE = 100_000  # things that are told before anything is asked
STACK = 4 << 20  # bytes, of a lane


class Inside:
    """Serves the other end until it is gone."""

    def __init__(self, line: Line):
        self.line = line
        self._functions: list[object] = []
        self._numbers: dict[int, int] = {}  # id of a function → its number
        self._far: dict[int, object] = {}  # what the judge has given
        self._tensors: dict[int, tuple[weakref.ref, int]] = {}  # number → tensor, its version when it was last told
        self._known: dict[int, int] = {}  # id of a tensor → its number
        self._held = deque(maxlen=WATCHED)
        self._counted = count(-1, -1)
        self._here = threading.local()
        self._lanes = {0}

    def serve(self) -> None:
        """Lane 0 is the main thread's; others get a thread when somebody calls on them."""
        threading.stack_size(STACK)
        Far.inside = self
        self.line.strange = self._new_lane
        self.line.open(0)
        self._serve(0)

    def _new_lane(self, frame: list) -> None:
        lane = frame[1]
        self.line._boxes[lane] = deque([frame])
        threading.Thread(target=self._serve, args=(lane,), daemon=True).start()

    def _serve(self, lane: int) -> None:
        self._here.lane = lane
        while True:
            try:
                self._answer(lane, self.line.wait(lane))
            except Gone:
                return

    def _answer(self, lane: int, frame: list) -> None:
        request, _, *parts = frame
        function = None
        try:
            if request == "call":
                function = self._functions[parts[0]]
                result = function(*self.read(parts[1]), **self.read(parts[2]))
            else:
                result = {"load": self._load, "size": self._size, "shared": self._shared}[request](*parts)
            answer = ["return", lane, self.write(result)]
        except Gone:
            raise
        except BaseException as error:
            answer = ["raise", lane, self._told(error, function)]
        self.line.say([*answer, self._changed(), self._told_before()])

    # ---- what the judge asks for

    def _load(self, cells: list, answer: str) -> object:
        """Run these statements of these cells, and give what ``answer`` is."""
        names: dict[str, object] = {"__name__": "__main__"}
        first = None
        for name, source, run in cells:
            tree = ast.parse(source)
            for number in run:
                code = compile(ast.Module([tree.body[number]], []), name, "exec")
                try:
                    exec(code, names)
                except Gone:
                    raise
                except BaseException as error:
                    first = first or error
        try:
            return eval(answer, names)
        except NameError:
            if first is not None:
                raise first from None
            raise

    def _size(self, number: int, without: list) -> int:
        return size_kept(self._functions[number], [self.read(value) for value in without])

    def _shared(self, one: int, other: int, names: object) -> list:
        return list(shared_names(self._functions[one], self._functions[other], self.read(names)))

    def _told(self, error: BaseException, function: object) -> list:
        number = getattr(error, "judges", None)
        if number is not None:
            return ["own", number]
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        line, at = None, error.__traceback__
        while at:
            file = at.tb_frame.f_code.co_filename
            if file == code.co_filename if code else file.startswith("exercise"):
                line = at.tb_lineno
            at = at.tb_next
        base = next(kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind)
        plan = None
        if isinstance(error, PlanError):
            fields = None if error.plan is None else plan_fields(error.plan)
            try:
                plan = self.write((error.reason, error.step, error.values, fields))
            except Exception:  # it holds what does not travel
                plan = None
        return ["error", type(error).__name__, base, str(error)[:2000], line, plan, refused(error)]

    # ---- values

    def write(self, value: object) -> object:
        """What the answer gives, for the judge."""
        return written(value, self._write)

    def _write(self, value: object) -> list:
        if isinstance(value, torch.Tensor):
            return ["T", self._number(value), *values.numbers(value)]
        if isinstance(value, Reduction):
            return ["reduction", *(self.write(field) for field in (value.name, value.combine, value.identity))]
        if isinstance(value, Far):
            return ["given", value.number]
        if callable(value):
            number = self._numbers.get(id(value))
            if number is None:
                number = self._numbers[id(value)] = len(self._functions)
                self._functions.append(value)
            return ["function", number, _about(value)]
        items = None
        if hasattr(value, "__iter__"):
            items = self.write(list(islice(value, MOST)))
        return ["strange", type(value).__name__, repr(value)[:500], items]

    def read(self, data: object) -> object:
        """What the judge gives."""
        return read(data, self._read)

    def _read(self, data: list) -> object:
        kind, *rest = data
        if kind == "T":
            number, *rest = rest
            tensor = values.tensor(*rest)
            self._note(number, tensor)
            return tensor
        if kind == "own":
            return self._functions[rest[0]]
        if kind == "trace":
            return Trace.from_json(rest[0])
        number = rest[0]
        if number not in self._far:
            self._far[number] = (_function if kind == "function" else _object)(*rest)
        return self._far[number]

    def _number(self, tensor: torch.Tensor) -> int:
        number = self._known.get(id(tensor))
        if number not in self._tensors or self._tensors[number][0]() is not tensor:
            number = next(self._counted)
        self._note(number, tensor)
        return number

    def _note(self, number: int, tensor: torch.Tensor) -> None:
        self._known[id(tensor)] = number
        self._tensors[number] = (weakref.ref(tensor), tensor._version)
        self._held.append(tensor)

    def _changed(self) -> list:
        """The tensors that are other ones than was last told."""
        changes, gone = [], []
        for number, (reference, version) in self._tensors.items():
            tensor = reference()
            if tensor is None:
                gone.append(number)
            elif tensor._version != version:
                changes.append([number, *values.numbers(tensor)])
                self._tensors[number] = (reference, tensor._version)
        for number in gone:
            del self._tensors[number]
        return changes

    def _told_before(self) -> list:
        calls, self._here.told = getattr(self._here, "told", []), []
        return calls

    def tell(self, number: int, method: str | None, arguments: tuple, named: dict) -> None:
        """Call what the judge has given, and wait for no answer."""
        if not hasattr(self._here, "told"):
            self._here.told = []
        self._here.told.append([number, method, self.write(list(arguments)), self.write(named)])
        if len(self._here.told) > AT_ONCE:
            raise RuntimeError("too much is said")

    def call_back(self, number: int, method: str | None, arguments: tuple, named: dict) -> object:
        """Call what the judge has given."""
        lane = getattr(self._here, "lane", None)
        if lane is None:
            raise RuntimeError("what was given to an answer is called in the thread that was called")
        self.line.say(
            ["call", lane, number, method, self.write(list(arguments)), self.write(named), self._told_before()]
        )
        while True:
            frame = self.line.wait(lane)
            if frame[0] == "return":
                return self.read(frame[2])
            if frame[0] == "raise":
                number, name, base, message = frame[2]
                raise _judges(number, name, getattr(builtins, base), message)
            self._answer(lane, frame)  # the judge calls the answer before it answers


def _judges(number: int, name: str, base: type, message: str) -> BaseException:
    """An error of the judge's, which goes back as that number if the answer lets it through."""
    kind = type(name, (base,), {"__str__": lambda self: message})
    error = kind.__new__(kind)
    error.judges = number
    return error


def refused(error: BaseException | None) -> list[str] | None:
    """What of this process's walls an error comes from, and the file that was asked for, or None.

    >>> refused(FileNotFoundError(2, "No such file or directory", "data/notes.txt"))
    ['file', 'notes.txt']
    >>> refused(KeyError("x"))
    """
    for _ in range(10):  # errors in whose handling others were raised
        if isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
        ):
            return ["out-of-memory", ""]
        if getattr(error, "reason", None) == "no-course":  # somebody has asked for a solution
            return ["file", "chapters"]
        if isinstance(error, OSError):
            trace = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
            if isinstance(error, socket.gaierror) or error.errno == errno.ENETUNREACH:
                return ["network", ""]
            if error.errno in (errno.EPERM, errno.EACCES) and any(file == socket.__file__ for file in trace):
                return ["network", ""]
            if error.filename is not None:
                return ["file", os.path.basename(str(error.filename))]
            if error.errno == errno.EPERM:
                return ["process", ""]
        if error is None:
            return None
        error = error.__cause__ or error.__context__
    return None


class Far:
    """Something of the judge's. What measures how much an answer keeps looks into no class, and so not behind it."""

    inside: Inside
    number: int


class Function(Far):
    def __call__(self, *arguments: object, **named: object) -> object:
        return Far.inside.call_back(self.number, None, arguments, named)


class OneWay(Far):
    """A function that gives nothing back: what it is told is told with the next word that is said anyway."""

    def __call__(self, *arguments: object, **named: object) -> None:
        Far.inside.tell(self.number, None, arguments, named)


def _function(number: int, name: str, one_way: bool) -> object:
    function = OneWay() if one_way else Function()
    function.number, function.__name__ = number, name
    return function


def _object(number: int, name: str, methods: list[list]) -> object:
    def method(method_name: str, one_way: bool) -> FunctionType:
        if one_way:
            return lambda self, *arguments, **named: Far.inside.tell(self.number, method_name, arguments, named)
        return lambda self, *arguments, **named: Far.inside.call_back(self.number, method_name, arguments, named)

    thing = type(name, (Far,), {method_name: method(method_name, one_way) for method_name, one_way in methods})()
    thing.number = number
    return thing


def _about(function: object) -> dict:
    code = getattr(function, "__code__", None)
    about = {"name": getattr(function, "__name__", type(function).__name__), "signature": None, "names": None}
    if code is not None:
        about["names"] = bool(code.co_names or code.co_freevars)
    try:
        parameters = inspect.signature(function).parameters.values()
        about["signature"] = [[part.name, int(part.kind), part.default is not part.empty] for part in parameters]
    except (TypeError, ValueError):
        pass
    return about
