"""The answer's end of the line: it runs cells, calls their functions and returns the results; it judges nothing."""

import __future__

import ast
import asyncio
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

from course.classes import slices, values
from course.classes.line import Gone, Line
from course.classes.values import plan_fields, read, written
from d2lps import PlanError, Reduction, Trace
from d2lps.notebook.grading import shared_names, size_kept

WATCHED = 32  # tensors kept alive, so that a change is seen even if the answer keeps only a part of them
MOST_ITEMS = 100_000  # taken from an iterable
MOST_CALLS = 100_000  # one-way calls between two frames
FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
STACK = 4 << 20  # bytes of a lane's thread


class Inside:
    """Serves the judge until its end of the line is closed."""

    def __init__(self, line: Line, attempts: list[tuple[str, str]]):
        self.line, self._attempts = line, attempts
        self._failed: dict[str, BaseException] = {}  # name → why the statement that binds it has failed
        self._functions: list[object] = []
        self._numbers: dict[int, int] = {}  # id of a function → its number
        self._judges_objects: dict[int, object] = {}  # number → object of the judge
        self._tensors: dict[int, tuple[weakref.ref, int]] = {}  # number → tensor, and its version when it was last sent
        self._known: dict[int, int] = {}  # id of a tensor → its number
        self._held = deque(maxlen=WATCHED)
        self._counted = count(-1, -1)
        self._here = threading.local()
        self._lanes = {0}
        self._requests = {"load": self._load, "size": self._size, "shared": self._shared, "gradient": self._gradient}

    def serve(self) -> None:
        """Serve lane 0 in the main thread, and each other lane in a thread that starts with its first frame."""
        threading.stack_size(STACK)
        OfJudge.inside = self
        self.line.on_new_lane = self._new_lane
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
                result = self._requests[request](*parts)
            answer = ["return", lane, self.write(result)]
        except Gone:
            raise
        except BaseException as error:
            for _ in range(10):  # follow the chain of causes
                if isinstance(error, NameError):
                    error = self._failed.get(error.name) or self._failed.get("*", error)
            answer = ["raise", lane, self._described(error, function)]
        attempts, self._attempts[:] = [*self._attempts], []
        self.line.say([*answer, self._changed(), self._one_way_calls(), attempts])

    # ---- requests of the judge

    def _load(self, cells: list, answer: str) -> object:
        """Run these statements of these cells, and return the value of the expression ``answer``."""
        names: dict[str, object] = {"__name__": "__main__", "display": lambda *_, **__: None}
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        loop = None
        for name, source, run in cells:
            body = slices.cell(name, source).body
            for number in run:
                try:
                    code = compile(ast.Module([body[number]], []), name, "exec", flags, dont_inherit=True)
                    flags |= code.co_flags & FUTURE
                    if code.co_flags & inspect.CO_COROUTINE:
                        loop = loop or asyncio.new_event_loop()  # one for all statements, as in Jupyter
                        loop.run_until_complete(eval(code, names))
                    else:
                        exec(code, names)
                except Gone:
                    raise
                except BaseException as error:
                    self._failed |= dict.fromkeys(slices.bound(body[number]) or "*", error)
        return eval(answer, names)

    def _size(self, number: int, without: list) -> int:
        return size_kept(self._functions[number], [self.read(value) for value in without])

    def _shared(self, one: int, other: int, names: object) -> list:
        return list(shared_names(self._functions[one], self._functions[other], self.read(names)))

    def _described(self, error: BaseException, function: object) -> list:
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
            except Exception:  # the plan has values that cannot be sent
                plan = None
        return ["error", type(error).__name__, base, _message(error)[:2000], line, plan, refused(error)]

    def _gradient(self, y: int, x: int, factors: list) -> torch.Tensor | None:
        y, x = (self._tensors[number][0]() if number in self._tensors else None for number in (y, x))
        if y is None or x is None:  # what no longer exists has no gradient
            return None
        return torch.autograd.grad(y, x, self.read(factors), allow_unused=True)[0]

    # ---- values

    def write(self, value: object) -> object:
        """Encode a value of the answer for the judge."""
        return written(value, self._write)

    def _write(self, value: object) -> list:
        if isinstance(value, torch.Tensor):
            return ["T", self._number(value), *values.numbers(value)]
        if isinstance(value, Reduction):
            return ["reduction", *(self.write(field) for field in (value.name, value.combine, value.identity))]
        if isinstance(value, OfJudge):
            return ["given", value.number]
        if callable(value):
            number = self._numbers.get(id(value))
            if number is None:
                number = self._numbers[id(value)] = len(self._functions)
                self._functions.append(value)
            return ["function", number, _about(value)]
        items = None
        if hasattr(value, "__iter__"):
            items = self.write(list(islice(value, MOST_ITEMS)))
        return ["strange", type(value).__name__, repr(value)[:500], items]

    def read(self, data: object) -> object:
        """Decode a value of the judge."""
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
        if number not in self._judges_objects:
            self._judges_objects[number] = (_function if kind == "function" else _object)(*rest)
        return self._judges_objects[number]

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
        """Return the tensors that have changed since they were last sent, and forget those that no longer exist."""
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

    def _one_way_calls(self) -> list:
        calls, self._here.calls = getattr(self._here, "calls", []), []
        return calls

    def tell(self, number: int, method: str | None, arguments: tuple, named: dict) -> None:
        """Call an object of the judge without waiting for a result; the call is sent with the next frame."""
        if not hasattr(self._here, "calls"):
            self._here.calls = []
        self._here.calls.append([number, method, self.write(list(arguments)), self.write(named)])
        if len(self._here.calls) > MOST_CALLS:
            raise RuntimeError("too many calls without a result")

    def call_back(self, number: int, method: str | None, arguments: tuple, named: dict) -> object:
        """Call an object of the judge and return the result."""
        lane = getattr(self._here, "lane", None)
        if lane is None:
            raise RuntimeError("an answer may call the judge's functions only in the thread in which it was called")
        self.line.say(
            ["call", lane, number, method, self.write(list(arguments)), self.write(named), self._one_way_calls()]
        )
        while True:
            frame = self.line.wait(lane)
            if frame[0] == "return":
                return self.read(frame[2])
            if frame[0] == "raise":
                number, name, base, message = frame[2]
                raise _judges(number, name, getattr(builtins, base), message)
            self._answer(lane, frame)  # the judge calls the answer in between


def _judges(number: int, name: str, base: type, message: str) -> BaseException:
    """Make an error of the judge, which goes back by its number if the answer does not catch it."""
    kind = type(name, (base,), {"__str__": lambda self: message})
    error = kind.__new__(kind)
    error.judges = number
    return error


def refused(error: BaseException | None) -> list[str] | None:
    """Return the kind of refusal of the sandbox that caused an error, and the file's name; None for other errors.

    >>> refused(FileNotFoundError(2, "No such file or directory", "data/notes.txt"))
    ['file', 'notes.txt']
    >>> refused(KeyError("x"))
    """
    for _ in range(10):  # follow the chain of causes
        if isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError) and "can't allocate memory" in _message(error)
        ):
            return ["out-of-memory", ""]
        if getattr(error, "reason", None) == "no-course":  # the answer asked for a solution
            return ["file", "chapters"]
        if isinstance(error, ModuleNotFoundError) and error.name:
            return ["import", error.name]
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


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the error contains itself, or its class has no text
        return ""


class OfJudge:
    """An object of the judge. The measurement of an answer's memory does not look into classes, so not behind it."""

    inside: Inside
    number: int


class Function(OfJudge):
    def __call__(self, *arguments: object, **named: object) -> object:
        return OfJudge.inside.call_back(self.number, None, arguments, named)


class OneWay(OfJudge):
    """A function without a result: its calls are sent with the next frame."""

    def __call__(self, *arguments: object, **named: object) -> None:
        OfJudge.inside.tell(self.number, None, arguments, named)


def _function(number: int, name: str, one_way: bool) -> object:
    function = OneWay() if one_way else Function()
    function.number, function.__name__ = number, name
    return function


def _object(number: int, name: str, methods: list[list]) -> object:
    def method(method_name: str, one_way: bool) -> FunctionType:
        if one_way:
            return lambda self, *arguments, **named: OfJudge.inside.tell(self.number, method_name, arguments, named)
        return lambda self, *arguments, **named: OfJudge.inside.call_back(self.number, method_name, arguments, named)

    thing = type(name, (OfJudge,), {method_name: method(method_name, one_way) for method_name, one_way in methods})()
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
