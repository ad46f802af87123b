# SPDX-License-Identifier: Apache-2.0
"""Large outputs: their memory is used again, never while anybody can still see it."""

import gc
import os
import threading

import pytest

torch = pytest.importorskip("torch")

import linfuse
from linfuse import memory

pytestmark = pytest.mark.skipif(
    not memory.CAN_KEEP, reason="this PyTorch does not tell who uses a storage: large outputs are ordinary tensors"
)
ROWS, COLUMNS = 1200, 2048  # more than memory.LEAST
assert 4 * ROWS * COLUMNS > memory.LEAST


@pytest.fixture(autouse=True)
def nothing_kept():
    gc.collect()
    linfuse.empty_cache()
    yield
    linfuse.empty_cache()


@pytest.fixture
def add_one():
    def model(x):
        return torch.relu(x + 1) * 2

    compiled = torch.compile(model, backend="linfuse", options={"fallback": "error"})
    with torch.no_grad():
        yield lambda value, rows=ROWS: compiled(torch.full((rows, COLUMNS), float(value)))


def is_all(tensor, value):
    return bool((tensor == value).all())


def test_memory_is_used_again_when_the_tensor_is_gone(add_one):
    first = add_one(1)
    place = first.data_ptr()
    assert is_all(first, 4) and linfuse.stats().output_bytes == 0
    del first
    assert linfuse.stats().output_bytes == 4 * ROWS * COLUMNS
    second = add_one(2)
    assert second.data_ptr() == place and is_all(second, 6) and linfuse.stats().output_bytes == 0


def test_memory_in_use_is_left_alone(add_one):
    first = add_one(1)
    second = add_one(2)
    assert first.data_ptr() != second.data_ptr() and is_all(first, 4) and is_all(second, 6)


SEEN_BY = {
    "view": lambda y: y[5:, 3],
    "transpose": lambda y: y.T,
    "numpy": lambda y: y.numpy(),
    "dlpack": torch.utils.dlpack.to_dlpack,
    "storage": lambda y: y.untyped_storage(),
    "typed storage": lambda y: y.storage(),
    "tensor on its storage": lambda y: torch.empty(0).set_(y.untyped_storage()),
    "graph": lambda y: torch.ones((), requires_grad=True) * y,
}


@pytest.mark.parametrize("see", SEEN_BY.values(), ids=SEEN_BY)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_whatever_still_sees_it_keeps_it(add_one, see):
    first = add_one(1)
    with torch.enable_grad():
        seen, place = see(first), first.data_ptr()
    del first
    gc.collect()
    second = add_one(2)
    assert second.data_ptr() != place
    del seen, second
    assert linfuse.stats().output_bytes == 2 * 4 * ROWS * COLUMNS


def empty_storage(y):
    y.untyped_storage().resize_(0)


def empty_storage_and_back(y):
    """As FSDP does with parameters that are not needed for a while."""
    size = y.untyped_storage().nbytes()
    y.untyped_storage().resize_(0)
    y.untyped_storage().resize_(size)


CHANGES = {
    "more rows": lambda y: y.resize_(3 * ROWS, COLUMNS),
    "fewer rows": lambda y: y.resize_(3, COLUMNS),
    "out, larger": lambda y: torch.ones(2 * ROWS, COLUMNS, out=y.resize_(0)),
    "out, smaller": lambda y: torch.ones(2, COLUMNS, out=y.resize_(0)),
    "empty storage": empty_storage,
    "empty storage and back": empty_storage_and_back,
    "larger storage": lambda y: y.untyped_storage().resize_(3 * 4 * ROWS * COLUMNS),
    "smaller storage": lambda y: y.untyped_storage().resize_(2 * ROWS * COLUMNS),
    "shared": lambda y: y.share_memory_(),
    "set": lambda y: y.set_(torch.zeros(3)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_it_can_be_resized(add_one, change):
    """What PyTorch's own outputs take, these do; and the next ones are as they should be."""
    plain, y = torch.full((ROWS, COLUMNS), 4.0), add_one(1)
    change(plain)
    change(y)
    assert y.shape == plain.shape and y.untyped_storage().nbytes() == plain.untyped_storage().nbytes()
    del y
    for value in (2, 3):
        y = add_one(value)
        assert is_all(y, 2 * (value + 1)) and y.untyped_storage().nbytes() == 4 * ROWS * COLUMNS


def test_one_on_a_storage_that_numpy_saw_can_be_resized(add_one):
    """NumPy makes a storage stay as large as it is, for good."""
    add_one(1).numpy()
    add_one(2).resize_(2 * ROWS, COLUMNS)


def test_what_other_processes_share_is_not_used_again(add_one):
    first = add_one(1).share_memory_()
    place = first.data_ptr()
    del first
    assert add_one(2).data_ptr() != place


def test_inference_tensors_stay_apart(add_one):
    """A tensor is of the mode it was made in, whoever used the memory before."""
    for inference in (True, False, True, False):
        with torch.inference_mode(inference):
            y = add_one(1)
            assert y.is_inference() == inference and is_all(y, 4)
        del y


def test_of_very_many_in_use_the_oldest_are_pytorchs(add_one, monkeypatch):
    monkeypatch.setattr(memory, "MOST_WATCHED", 2)
    held = [add_one(value) for value in range(4)]
    assert len(memory._blocks) == 2 and all(is_all(y, 2 * (value + 1)) for value, y in enumerate(held))
    held.clear()
    assert linfuse.stats().output_bytes == 2 * 4 * ROWS * COLUMNS

def test_it_is_a_tensor_like_any_other(add_one):
    y = add_one(1)
    assert y._base is None and y.is_contiguous() and not y.requires_grad and y.storage_offset() == 0
    y.add_(1)
    assert is_all(y, 5) and is_all(y.clone(), 5)
    y.requires_grad_()
    with torch.enable_grad():
        (y * 3).sum().backward()
    assert is_all(y.grad, 3)


def test_small_outputs_are_pytorchs(add_one):
    y = add_one(1, rows=3)
    del y
    assert linfuse.stats().output_bytes == 0


def test_no_more_than_so_much_is_kept(add_one, monkeypatch):
    monkeypatch.setattr(memory, "MOST_KEPT", 3 * 4 * ROWS * COLUMNS)
    held = [add_one(value) for value in range(6)]
    assert all(is_all(y, 2 * (value + 1)) for value, y in enumerate(held))
    del held
    y = add_one(7)
    assert linfuse.stats().output_bytes <= memory.MOST_KEPT and is_all(y, 16)


def test_the_cache_can_be_emptied(add_one):
    y = add_one(1)
    del y
    linfuse.empty_cache()
    assert linfuse.stats().output_bytes == 0 and is_all(add_one(2), 6)


def test_threads_never_share_a_block(add_one):
    add_one(0)
    wrong = []

    def work(value):
        with torch.no_grad():
            for step in range(20):
                kept = [add_one(value + step), add_one(value - step)]
                wanted = [max(value + step + 1, 0) * 2, max(value - step + 1, 0) * 2]
                wrong.extend(want for want, y in zip(wanted, kept) if not is_all(y, want))

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_has_its_own(add_one):
    seen, free = add_one(1), add_one(2)
    del free
    child = os.fork()
    if child == 0:
        try:
            for tensor in (seen, memory.empty((ROWS, COLUMNS), (COLUMNS, 1))):
                tensor[0, 0] = -7  # one number: OpenMP's threads do not survive a fork
        finally:
            os._exit(0)
    later = add_one(3)
    os.waitpid(child, 0)
    assert is_all(seen, 4) and is_all(later, 8)
