# SPDX-License-Identifier: Apache-2.0
"""python/shortcut.c alone, with objects that are like PyTorch's: every question that is answered otherwise, and every
error, leads to the part, and nothing is lost on the way."""

import ctypes
import shutil
import sys
import weakref

import pytest

NAMES = ("_current_level", "dtype", "is_cpu", "is_contiguous", "shape", "_version", "data_ptr", "stamps", "runs")
Run = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_void_p)] * 3, ctypes.c_int)
Hold = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)


class Tensor:
    """What a shortcut asks a tensor."""

    def __init__(self):
        self.dtype, self.is_cpu, self.shape, self._version, self.contiguous = "f32", True, (2, 3), 3, True
        self.values = (ctypes.c_float * 6)()

    def is_contiguous(self):
        return self.contiguous

    def data_ptr(self):
        return ctypes.addressof(self.values)


class Thing:
    """Whatever has attributes."""


class World:
    """A shortcut that is set up, and all it looks at. Values of `state` change what it is told."""

    def __init__(self, library, outputs=2):
        self.state = {"grad": False, "transforms": None, "threads": 2, "status": 0, "holds": True}
        state = self.state
        self.forward_ad = Thing()
        self.forward_ad._current_level = -1
        self.ran = []
        self.functions = Run(self.run), Hold(lambda program: state["holds"])
        asked = (lambda: state["grad"]), (lambda: state["transforms"]), (lambda: state["threads"])
        words = (False, True, None, 1, "f32", *asked, self.forward_ad, *map(sys.intern, NAMES))
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self.functions]
        assert library.linfuse_shortcut_begin(words, *addresses) == len(words)
        self.x, self.w = Tensor(), Tensor()
        self.prepared, self.slot = Thing(), Thing()
        self.prepared.stamps, self.slot.runs = [(id(self.w), 3, self.w.data_ptr())], 0
        self.prepared.idle = [Thing(), self.slot]
        self.arrays = (ctypes.c_void_p * 1)(), (ctypes.c_void_p * outputs)(), (ctypes.c_int64 * 1)(2)
        inputs_at, outputs_at, dims_at = map(ctypes.addressof, self.arrays)
        self.call = library.linfuse_shortcut_new(lambda *args: ("part", *args), (0,), (2,), 3, outputs)
        self.makers = ((Tensor, ()),) * outputs
        self.how = (weakref.ref(self.prepared), self.prepared.stamps, self.prepared.idle, self.slot, Thing(),
                    (self.x.shape,), self.makers, dims_at, 7, 8, inputs_at, outputs_at, 2)
        library.linfuse_shortcut_set(self.call, self.how)

    def run(self, call, dims, inputs, outputs, threads):
        self.ran.append((call, threads, inputs[0], outputs[0]))
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
def world(library, tmp_path):
    # a copy: the library itself may be in use, with PyTorch's own objects
    loaded = ctypes.PyDLL(shutil.copy(library.with_name("liblinfuse_shortcut.so"), tmp_path))
    loaded.linfuse_shortcut_begin.restype = ctypes.c_ssize_t
    loaded.linfuse_shortcut_begin.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p]
    loaded.linfuse_shortcut_new.restype = loaded.linfuse_shortcut_set.restype = ctypes.py_object
    loaded.linfuse_shortcut_new.argtypes = [ctypes.py_object] * 3 + [ctypes.c_ssize_t] * 2
    loaded.linfuse_shortcut_set.argtypes = [ctypes.py_object] * 2
    made = World(loaded)
    made.library = loaded
    return made


def test_runs(world):
    results = world()
    assert world.ran == [(8, 2, world.x.data_ptr(), results[0].data_ptr())]
    assert world.slot.runs == 1 and len(results) == 2
    assert not world.is_parts()


def test_too_few_words(world):
    assert world.library.linfuse_shortcut_begin((1, 2), None, None) > 2


def test_too_many_of_anything(world):
    many = tuple(range(33))
    for inputs, params, outputs in ((many, (0,), 1), ((0,), many, 1), ((0,), (1,), 33)):
        assert world.library.linfuse_shortcut_new(print, inputs, params, 40, outputs) is None


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
    kept, world.w.values = world.w.values, (ctypes.c_float * 6)()
    assert world.is_parts()
    world.w.values = kept
    kept, world.w = world.w, Tensor()
    assert world.is_parts()
    world.w = kept
    world.prepared.stamps = list(world.prepared.stamps)  # prepared anew
    assert world.is_parts()


def test_forward_mode(world):
    for level in (0, None):
        world.forward_ad._current_level = level
        assert world.is_parts()
    world.forward_ad._current_level = -1
    assert not world.is_parts()


def raising(error):
    def method(self=None):
        raise error

    return method


@pytest.mark.parametrize("name", ["data_ptr", "is_contiguous"])
def test_errors_of_methods(world, monkeypatch, name):
    """What PyTorch refuses the part meets again; what comes from elsewhere, an interrupt for one, comes but once."""
    for error in (RuntimeError(), AttributeError(), TypeError(), ValueError()):
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, name, raising(error))
            assert world.is_parts()
        assert not world.is_parts()
    for error in (KeyboardInterrupt, MemoryError, ZeroDivisionError, TimeoutError):
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, name, raising(error("once")))
            with pytest.raises(error, match="once"):
                world()
            assert world.prepared.idle[-1] is world.slot
        assert not world.is_parts()


def test_set_up_anew_in_the_middle(world):
    """A call goes by what was there when it began, whatever is set up meanwhile and whoever calls it."""
    other, deep = list(world.how), []
    other[3:6] = Thing(), Thing(), ((9, 9),)
    other[7:] = 1, 1, 1, 1, 1, 1

    def meanwhile():
        if not deep:
            deep.append(1)
            assert world.call(world.x, 5, world.w)[0] == "part"  # the slot is in use
            world.library.linfuse_shortcut_set(world.call, tuple(other))
            assert world.call(world.x, 5, world.w)[0] == "part"  # of other extents
        return Tensor()

    how = list(world.how)
    how[6] = ((meanwhile, ()),) * 2
    world.library.linfuse_shortcut_set(world.call, tuple(how))
    del how
    results = world()
    assert deep and world.ran == [(8, 2, world.x.data_ptr(), results[0].data_ptr())]
    assert world.prepared.idle[-1] is world.slot
    assert world()[0] == "part"


def test_programs_are_told_apart(world):
    """Slots are a program's own, as long as it is there: they are not looked at where another is asked."""
    other = Thing()
    other.stamps = list(world.prepared.stamps)
    how = list(world.how)
    how[0] = weakref.ref(other)
    world.library.linfuse_shortcut_set(world.call, tuple(how))
    assert world.is_parts()


def test_outputs_that_cannot_be_made(world):
    made = []

    def second_fails():
        made.append(Tensor())
        if len(made) % 2 == 0:
            raise RuntimeError("no memory")
        return made[-1]

    how = list(world.how)
    how[6] = ((second_fails, ()),) * 2
    world.library.linfuse_shortcut_set(world.call, tuple(how))
    assert world.is_parts()
    gone = [weakref.ref(one) for one in made]
    made.clear()
    assert [one() for one in gone] == [None, None]


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

    call = world.library.linfuse_shortcut_new(fails, (0,), (1,), 2, 1)
    with pytest.raises(ValueError, match="of the part"):
        call(1, 2)


def test_nothing_is_kept(world):
    objects = world.x, world.w, world.slot, world.prepared, world.how[4], world.makers, world.forward_ad
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
