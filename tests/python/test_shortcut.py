# SPDX-License-Identifier: Apache-2.0
"""python/shortcut.c alone, with objects that are like PyTorch's: every question that is answered otherwise, and every
error, leads to the part, and nothing is lost on the way."""

import ctypes
import gc
import shutil
import sys
import weakref

import pytest
from linfuse import native

HOST, DEVICE = native.Place.HOST, native.Place.DEVICE
NAMES = ("_version", "data_ptr", "stride", "stamps", "runs", "room_at")
_call = ctypes.c_int, ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_void_p)] * 3
RunAt = ctypes.CFUNCTYPE(*_call, ctypes.POINTER(native.RunOptions))
Hold = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)
FEATURES, MAKERS, WHERE = 5, 6, 8  # places in what a shortcut is set up by
ON_GPU = DEVICE, 0, 77, 16, 512, None


class Tensor:
    """What a shortcut asks a tensor."""

    def __init__(self):
        self.dtype, self.is_cpu, self.shape, self._version, self.contiguous = "f32", True, (2, 3), 3, True
        self.values, self.strides = (ctypes.c_float * 6)(), (3, 1)

    def is_contiguous(self):
        return self.contiguous

    def stride(self):
        return self.strides

    def data_ptr(self):
        return ctypes.addressof(self.values)


class Thing:
    """Whatever has attributes."""


class World:
    """A shortcut that is set up, and all it looks at. Values of `state` change what it is told."""

    def __init__(self, library, where=(HOST, 2, 0, 1, 0, None)):
        self.state = {"grad": False, "transforms": None, "threads": 2, "status": 0, "holds": True}
        state = self.state
        self.ran = []
        self.functions = RunAt(self.run), Hold(lambda program: state["holds"])
        words = (None, 1, (RuntimeError, AttributeError, TypeError, ValueError), *map(sys.intern, NAMES))
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self.functions]
        assert library.lf_shortcut_teach(words, *addresses) == len(words)
        self.x, self.w = Tensor(), Tensor()
        self.prepared, self.slot = Thing(), Thing()
        self.prepared.stamps, self.slot.runs, self.slot.room_at = [(id(self.w), 3, self.w.data_ptr(), (3, 1))], 0, 4096
        self.prepared.idle = [Thing(), self.slot]
        self.arrays = (ctypes.c_int64 * 1)(2), (ctypes.c_void_p * 1)(), (ctypes.c_void_p * 2)()
        dims_at, *arrays_at = map(ctypes.addressof, self.arrays)
        self.call = library.lf_shortcut_new(lambda *args: ("part", *args), (0,), (2,), 3, 2)
        questions = tuple((state.get, (name,), state[name]) for name in ("grad", "transforms", "threads"))
        features = (("dtype", None, "f32"), ("is_cpu", None, True), (None, "is_contiguous", True),
                    ("shape", None, self.x.shape))
        at = dims_at, 0 if where[0] == DEVICE else 7, 8, *arrays_at
        self.how = (weakref.ref(self.prepared), self.prepared.stamps, self.prepared.idle, self.slot, questions,
                    (features,), ((Tensor, ()),) * 2, at, where, Thing())
        self.library = library
        library.lf_shortcut_set(self.call, self.how)

    def set(self, place, what):
        """The same with something else in one place."""
        self.library.lf_shortcut_set(self.call, (*self.how[:place], what, *self.how[place + 1:]))

    def run(self, call, dims, inputs, outputs, options):
        how = tuple(getattr(options[0], name) for name, _ in native.RunOptions._fields_)
        self.ran.append((call, inputs[0], outputs[0], *how))
        return self.state["status"]

    def __call__(self):
        return self.call(self.x, 5, self.w)

    def is_parts(self):
        """Whether the part was called; the slot is back in its place either way."""
        results = self()
        assert self.prepared.idle[-1] is self.slot and len(self.prepared.idle) == 2
        if results[0] == "part":
            assert results[1:] == (self.x, 5, self.w)
            return True
        assert all(isinstance(one, Tensor) for one in results)
        return False


@pytest.fixture
def loaded(library, tmp_path):
    # a copy: the library itself may be in use, with PyTorch's own objects
    loaded = ctypes.PyDLL(shutil.copy(library.with_name("liblinfuse_shortcut.so"), tmp_path))
    loaded.lf_shortcut_teach.restype = ctypes.c_ssize_t
    loaded.lf_shortcut_teach.argtypes = [ctypes.py_object] + [ctypes.c_void_p] * 2
    loaded.lf_shortcut_new.restype = loaded.lf_shortcut_set.restype = ctypes.py_object
    loaded.lf_shortcut_new.argtypes = [ctypes.py_object] * 3 + [ctypes.c_ssize_t] * 2
    loaded.lf_shortcut_set.argtypes = [ctypes.py_object] * 2
    return loaded


@pytest.fixture
def world(loaded):
    return World(loaded)


def test_runs(world):
    results = world()
    assert world.ran == [(8, world.x.data_ptr(), results[0].data_ptr(), 2, HOST, None, None, 0)]
    assert world.slot.runs == 1 and len(results) == 2
    assert not world.is_parts()


def test_runs_on_a_gpu(loaded):
    """Nobody looks at the values of parameters there. Workspace is the slot's, wherever it is by then, or made."""
    world = World(loaded, where=ON_GPU)
    world.state["holds"] = False
    results = world()
    assert world.ran == [(8, world.x.data_ptr(), results[0].data_ptr(), 0, DEVICE, 77, 4096, 512)]
    world.slot.room_at = 8192
    assert not world.is_parts() and world.ran[-1][-2:] == (8192, 512)
    rooms = []

    def room(size):
        rooms.append(Tensor())
        return rooms[-1]

    world.set(WHERE, (*ON_GPU[:-1], (room, (512,))))
    assert not world.is_parts() and world.ran[-1][-2:] == (rooms[0].data_ptr(), 512)
    gone = weakref.ref(rooms.pop())
    assert gone() is None
    world.set(WHERE, (*ON_GPU[:-1], (raising(RuntimeError("no memory")), ())))
    assert world.is_parts()
    world.set(WHERE, (*ON_GPU[:-1], (raising(KeyboardInterrupt("once")), ())))
    with pytest.raises(KeyboardInterrupt, match="once"):
        world()
    assert world.prepared.idle[-1] is world.slot


def test_addresses_that_are_not_aligned(loaded, monkeypatch):
    world = World(loaded, where=ON_GPU)
    assert not world.is_parts()
    with monkeypatch.context() as patch:
        patch.setattr(world.x, "data_ptr", lambda: 1028)
        assert world.is_parts()
    assert not world.is_parts()


def test_too_few_words(world):
    """Of another version's package: nothing is taken of it."""
    assert world.library.lf_shortcut_teach((1, 2), None, None) > 2
    assert not world.is_parts()
    for how in (world.how[:-1], (*world.how, 1), (*world.how[:WHERE], (2,), world.how[-1])):
        world.library.lf_shortcut_set(world.call, how)
        assert world.is_parts()
    world.library.lf_shortcut_set(world.call, world.how)
    assert not world.is_parts()


def test_too_many_of_anything(world):
    many = tuple(range(33))
    for inputs, params, outputs in ((many, (0,), 1), ((0,), many, 1), ((0,), (1,), 33)):
        assert world.library.lf_shortcut_new(print, inputs, params, 40, outputs) is None


@pytest.mark.parametrize("name, value", [
    ("grad", True), ("transforms", object()), ("threads", 3), ("threads", "no number"), ("status", 1), ("holds", False),
])
def test_answers(world, name, value):
    kept, world.state[name] = world.state[name], value
    assert world.is_parts()
    assert world.slot.runs == 0
    world.state[name] = kept
    assert not world.is_parts()


@pytest.mark.parametrize("name, value", [
    ("dtype", "f64"), ("is_cpu", False), ("contiguous", False), ("shape", (3, 3)), ("shape", 1),
])
def test_inputs(world, name, value):
    kept = getattr(world.x, name)
    setattr(world.x, name, value)
    assert world.is_parts()
    setattr(world.x, name, kept)
    assert not world.is_parts()


@pytest.mark.parametrize("name", ["dtype", "is_cpu", "shape", "_version"])
def test_attributes_that_are_not_there(world, name):
    kept = {tensor: tensor.__dict__.pop(name) for tensor in (world.x, world.w)}
    assert world.is_parts()
    for tensor, value in kept.items():
        setattr(tensor, name, value)
    assert not world.is_parts()


def test_parameters(world):
    world.w._version = 4
    assert world.is_parts()
    world.w._version = 3
    assert not world.is_parts()
    world.w.strides = (1, 2)
    assert world.is_parts()
    world.w.strides = (3, 1)
    kept, world.w.values = world.w.values, (ctypes.c_float * 6)()
    assert world.is_parts()
    world.w.values = kept
    kept, world.w = world.w, Tensor()
    assert world.is_parts()
    world.w = kept
    world.prepared.stamps = list(world.prepared.stamps)  # prepared anew
    assert world.is_parts()


def raising(error):
    def method(*args):
        raise error

    return method


class Late(RuntimeError):
    """What a handler of a signal may raise."""


@pytest.mark.parametrize("name", ["data_ptr", "is_contiguous"])
def test_errors_of_methods(world, monkeypatch, name):
    """What PyTorch refuses the part meets again; what comes from elsewhere, an interrupt for one, comes but once."""
    for error in (RuntimeError(), AttributeError(), TypeError(), ValueError()):
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, name, raising(error))
            assert world.is_parts()
        assert not world.is_parts()
    for error in (KeyboardInterrupt, MemoryError, ZeroDivisionError, TimeoutError, Late):
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, name, raising(error("once")))
            with pytest.raises(error, match="once"):
                world()
            assert world.prepared.idle[-1] is world.slot
        assert not world.is_parts()


def test_set_up_anew_in_the_middle(world):
    """A call goes by what was there when it began, whatever is set up meanwhile and whoever calls it."""
    deep = []

    def meanwhile():
        if not deep:
            deep.append(1)
            assert world.call(world.x, 5, world.w)[0] == "part"  # the slot is in use
            world.set(FEATURES, ((("shape", None, (9, 9)),),))
            assert world.call(world.x, 5, world.w)[0] == "part"  # of other extents
        return Tensor()

    world.set(MAKERS, ((meanwhile, ()),) * 2)
    results = world()
    assert deep and world.ran == [(8, world.x.data_ptr(), results[0].data_ptr(), 2, HOST, None, None, 0)]
    assert world.prepared.idle[-1] is world.slot
    assert world()[0] == "part"


def test_programs_are_told_apart(world):
    """Slots are a program's own, as long as it is there: they are not looked at where another is asked."""
    other = Thing()
    other.stamps = list(world.prepared.stamps)
    world.set(0, weakref.ref(other))
    assert world.is_parts()


def test_outputs_that_cannot_be_made(world):
    made = []

    def second_fails():
        made.append(Tensor())
        if len(made) % 2 == 0:
            raise RuntimeError("no memory")
        return made[-1]

    world.set(MAKERS, ((second_fails, ()),) * 2)
    assert world.is_parts()
    gone = [weakref.ref(one) for one in made]
    made.clear()
    assert [one() for one in gone] == [None, None]


def test_whoever_looks_at_all_objects(world):
    """Results are seen when they are there, not before."""
    seen = []

    def look():
        seen.append(gc.get_objects())
        return Tensor()

    world.set(MAKERS, ((look, ()),) * 2)
    assert not world.is_parts()
    assert len(seen) == 2


def test_slots(world):
    idle = world.prepared.idle
    idle.reverse()  # another is the next
    assert world()[0] == "part"
    idle.clear()
    assert world()[0] == "part" and not idle
    idle.extend([Thing(), world.slot])
    assert not world.is_parts()


def test_other_number_of_arguments(world):
    assert world.call(world.x, world.w) == ("part", world.x, world.w)
    assert world.call() == ("part",)


def test_error_of_the_part(world):
    def fails(*args):
        raise ValueError("of the part")

    call = world.library.lf_shortcut_new(fails, (0,), (1,), 2, 1)
    with pytest.raises(ValueError, match="of the part"):
        call(1, 2)


def test_nothing_is_kept(world):
    gc.collect()  # worlds of other tests share constants with this one
    objects = world.x, world.w, world.slot, world.prepared, *world.how
    for trouble in (None, "status", "version"):
        world.state["status"] = trouble == "status"
        world.w._version = 4 if trouble == "version" else 3
        world()
        before = [sys.getrefcount(one) for one in objects]
        for _ in range(1000):
            world()
        assert [sys.getrefcount(one) for one in objects] == before
    gone = [weakref.ref(one) for one in (world.prepared, world.call)]
    del objects, world.prepared
    world.how = None
    assert gone[0]() is None
    assert world()[0] == "part"
    del world.call
    assert gone[1]() is None
