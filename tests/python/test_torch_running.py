# SPDX-License-Identifier: Apache-2.0
"""batch_norm in training: fused with what stands around it, its running statistics updated as PyTorch does."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linfuse
from linfuse import notices
from torch_door import assert_fused, compiled, fresh, reasons

fresh_each_time = fresh(7)
K, N = 24, 16


def net(**how):
    first = [nn.Linear(K, N), nn.BatchNorm1d(N, **how), nn.GELU()]
    return nn.Sequential(*first, nn.Linear(N, N), nn.BatchNorm1d(N), nn.Softmax(dim=1))


def draw(batch):
    return torch.randn(batch, K) * 2 + 1


def pair(model):
    """The same twice, version counters and all."""
    return copy.deepcopy(model), copy.deepcopy(model)


def assert_same(mine, theirs, got, want, but="", exact=None):
    """The result, and all buffers with their version counters. exact: the module in double precision on the
    CPU, whose numbers are as good as PyTorch's where they are not finite."""
    known = dict(exact.named_buffers()) if exact else {}
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)
    for (name, buffer), (_, other) in zip(mine.named_buffers(), theirs.named_buffers(), strict=True):
        if but and name.endswith(but):
            continue
        close = torch.isclose(buffer, other, rtol=1e-5, atol=1e-6, equal_nan=True)
        if name in known:
            close |= (buffer == known[name].to(buffer.device)) & ~buffer.isfinite()
        assert bool(close.all()), f"{name}: {buffer}, not {other}"
        assert buffer._version == other._version, name


@pytest.mark.parametrize(
    "how", [{}, {"momentum": 0.3}, {"momentum": 1.0}, {"momentum": 0.0}, {"affine": False}, {"eps": 0.1}], ids=str
)
def test_module(how):
    mine, theirs = pair(net(**how))
    fast = compiled(mine, fallback="error")
    with torch.no_grad():
        for batch in (12, 12, -12, 7, 40, -7, -1, 2):  # less than 0: in eval
            training, batch = batch > 0, abs(batch)
            mine.train(training), theirs.train(training)
            x = draw(batch)
            assert_same(mine, theirs, fast(x), theirs(x))
    assert int(mine[1].num_batches_tracked) == 5
    assert bool(mine[1].running_mean.any()) == (how.get("momentum") != 0.0)
    assert_fused()


def test_one_part_and_one_preparation():
    """The counter and the statistics cut nothing, and training changes nothing that would have to be prepared again."""
    mine = net()
    fast = compiled(mine)
    with torch.no_grad():
        for batch in (9, 10, 11, 12):
            fast(draw(batch))
    stats = assert_fused()
    assert stats.fused_parts == stats.graphs and stats.fused_calls == 4, str(stats)
    assert stats.prepared == stats.programs_made == 1, str(stats)


def test_not_finite():
    """A column with one infinity has that for its mean; PyTorch on a GPU, which keeps count row by row, says NaN."""
    mine, theirs = pair(net())
    exact = copy.deepcopy(mine).double().cpu()
    fast = compiled(mine)
    x = draw(6)
    x[2, 3] = float("inf")
    with torch.no_grad():
        exact(x.double().cpu())
        assert_same(mine, theirs, fast(x), theirs(x), exact=exact)


class Own(nn.Module):
    """The functional forms, on buffers of one's own."""

    def __init__(self, call):
        super().__init__()
        self.linear, self.call = nn.Linear(K, N), call
        self.register_buffer("mean", torch.zeros(N))
        self.register_buffer("var", torch.ones(N))

    def forward(self, x):
        return torch.relu(self.call(self.linear(x), self.mean, self.var))


CALLS = {
    "functional": lambda h, m, v: F.batch_norm(h, m, v, training=True, momentum=0.2),
    "keywords": lambda h, m, v: F.batch_norm(input=h, running_mean=m, running_var=v, training=True),
    "torch": lambda h, m, v: torch.batch_norm(h, None, None, m, v, True, 0.2, 1e-5, False),
    "twice": lambda h, m, v: F.batch_norm(F.batch_norm(h, m, v, training=True) + h, m, v, training=True),
}
SEEN = {
    "read after": lambda h, m, v: F.batch_norm(h, m, v, training=True) + m,
    "read before": lambda h, m, v: F.batch_norm(h + m, m, v, training=True),
    "in eval after": lambda h, m, v: F.batch_norm(F.batch_norm(h, m, v, training=True), m, v),
    "a view": lambda h, m, v: F.batch_norm(h, m, v, training=True) + m.view(1, N),
}


@pytest.mark.parametrize("name", [*CALLS, *SEEN])
def test_functional(name):
    """Also where somebody else in the graph sees the statistics: then PyTorch keeps them."""
    mine, theirs = pair(Own({**CALLS, **SEEN}[name]))
    fast = compiled(mine)
    with torch.no_grad():
        for batch in (5, 5, 8, 3):
            x = draw(batch)
            assert_same(mine, theirs, fast(x), theirs(x))
    if name in CALLS:
        assert_fused()
    else:
        assert "updates its running statistics" in reasons()


def test_returned_statistics():
    """A graph that returns a running statistic returns the buffer itself, as it is afterwards."""
    mine, theirs = pair(net())

    def both(x):
        return mine(x), mine[1].running_mean

    fast = compiled(both)
    with torch.no_grad():
        x = draw(5)
        got, kept = fast(x)
        assert kept is mine[1].running_mean
        assert_same(mine, theirs, got, theirs(x))


def test_a_batch_of_nothing_changes_nothing():
    mine, theirs = pair(nn.Sequential(nn.Linear(K, N), nn.BatchNorm1d(N)))
    fast = compiled(mine)
    with torch.no_grad():
        for batch in (6, 0, 6):
            x = draw(batch)
            assert_same(mine, theirs, fast(x), theirs(x))


def _of_one_tensor(x, state, weight):
    return F.batch_norm(x @ weight, state[0], state[1], training=True), state.sum()


def _doubled_after(x, state, weight):
    y = F.batch_norm(x @ weight, state[0], state[1], training=True)
    return y, state.mul_(2).sum()


def _as_weight_and_bias(x, state, weight):
    mean, var = state[0].clone(), state[1].clone()
    return F.batch_norm(x @ weight, mean, var, weight=var, bias=mean, training=True), mean + var


@pytest.mark.parametrize("model", [_of_one_tensor, _doubled_after, _as_weight_and_bias])
def test_statistics_that_others_see(model):
    x, weight, state = draw(9), torch.randn(K, N), torch.stack([torch.ones(N), torch.full((N,), 2.0)])
    mine, theirs = state.clone(), state.clone()
    with torch.no_grad():
        got, want = compiled(model)(x, mine, weight), model(x, theirs, weight)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_two_modules_of_one_memory():
    def twins():
        one, other = nn.BatchNorm1d(N), nn.BatchNorm1d(N).eval()
        other.running_mean, other.running_var = one.running_mean.view(N), one.running_var.view(N)
        return one, other, nn.Linear(K, N)

    def run(one, other, linear, x):
        return one(linear(x)), other(linear(x))

    mine, x = twins(), draw(9)
    theirs = copy.deepcopy(mine)
    with torch.no_grad():
        torch.testing.assert_close(compiled(run)(*mine, x), run(*theirs, x), rtol=1e-4, atol=1e-5)


def test_counter_that_is_read():
    """One that others see stays where it is written."""
    mine, theirs = pair(net())

    def scaled(model):
        def run(x):
            return model(x) * model[1].num_batches_tracked

        return run

    fast, slow = compiled(scaled(mine)), scaled(theirs)
    with torch.no_grad():
        for batch in (5, 6, 7):
            x = draw(batch)
            assert_same(mine, theirs, fast(x), slow(x))


def test_cumulative_average():
    """momentum=None wants the counter's value on the host, where PyTorch cuts the graph: right, whoever runs it."""
    mine, theirs = pair(net(momentum=None))
    fast = compiled(mine)
    with torch.no_grad():
        for batch in (5, 6, 7, 8):
            x = draw(batch)
            assert_same(mine, theirs, fast(x), theirs(x))


def test_momentum_of_the_call():
    """A momentum that changes from call to call, as a cumulative average's does."""
    mine, theirs = pair(Own(None))

    def run(model):
        return lambda x, momentum: torch.relu(
            F.batch_norm(model.linear(x), model.mean, model.var, training=True, momentum=momentum)
        )

    fast, slow = compiled(run(mine)), run(theirs)
    with torch.no_grad():
        for step in range(1, 6):
            x = draw(6)
            assert_same(mine, theirs, fast(x, 1 / step), slow(x, 1 / step))
    assert_fused()


def test_one_row_is_an_error():
    """As in PyTorch, and nothing is learnt from it. (Eager counts the batch all the same; with any backend Dynamo
    refuses it before.)"""
    mine, theirs = pair(net())
    fast = compiled(mine)
    with torch.no_grad():
        x = draw(5)
        assert_same(mine, theirs, fast(x), theirs(x))
        one = draw(1)
        for run in (fast, theirs):
            with pytest.raises((ValueError, RuntimeError), match="more than 1 value"):
                run(one)
        x = draw(6)
        assert_same(mine, theirs, fast(x), theirs(x), but="num_batches_tracked")


def test_gradients():
    """With gradients on all of it is PyTorch's, gradients and statistics; then fused again without."""
    mine, theirs = pair(net())
    fast = compiled(mine)
    for batch in (8, 9):
        x = draw(batch)
        got, want = fast(x), theirs(x)
        got[:, 0].sum().backward(), want[:, 0].sum().backward()
        assert_same(mine, theirs, got, want)
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
    assert linfuse.stats().fused_calls == 0
    with torch.no_grad():
        x = draw(10)
        assert_same(mine, theirs, fast(x), theirs(x))
    assert linfuse.stats().fused_calls == 1


def test_inference_mode():
    mine, theirs = pair(net())
    fast = compiled(mine)
    with torch.inference_mode():
        for batch in (5, 6):
            x = draw(batch)
            assert_same(mine, theirs, fast(x), theirs(x))


def test_frozen():
    """Gradients on, and nothing to differentiate: fused."""
    mine, theirs = pair(net().requires_grad_(False))
    fast = compiled(mine)
    for batch in (5, 6):
        x = draw(batch)
        assert_same(mine, theirs, fast(x), theirs(x))
    assert_fused()


def test_explain():
    """Shows what a call runs, and changes nothing."""
    model = net()
    before = copy.deepcopy(model.state_dict())
    account = linfuse.explain(model, draw(5))
    assert "batch_norm" in str(account) and "Left to PyTorch" not in str(account)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_save(tmp_path):
    """A file has nowhere to put them."""
    with pytest.raises(linfuse.Error, match="updates its running statistics"):
        linfuse.save(net(), draw(5), tmp_path / "saved")


def test_gradients_are_mentioned_once():
    """Where PyTorch runs what needs them; not where it may not, and that is an error."""
    notices.forget()
    model, x = nn.Sequential(nn.Linear(4, 5), nn.GELU()), torch.randn(3, 4)
    fast = compiled(model)
    with pytest.warns(UserWarning, match="no_grad"):
        fast(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(x)
    notices.forget()
    torch._dynamo.reset()  # 2.4 takes a trace with other options for the same
    with warnings.catch_warnings(record=True) as said, pytest.raises(Exception, match="left to PyTorch.*requires grad"):
        compiled(copy.deepcopy(model), fallback="error")(x)
    assert not [one for one in said if "linfuse" in str(one.message)]
