"""Training as it is written for other libraries: gradients that are changed in place, states that go from step to step, tied and frozen
weights. What a step computes is counted, as a loop must not cost more from step to step."""
import numpy as np
import pytest

import koine
from koine import Tensor, nn


def with_gradient(values=(1.0, 2.0, 3.0)):
    p = Tensor(list(values), requires_grad=True)
    (p * p).sum().backward()
    return p


def operations(f):
    koine.reset_counters()
    f()
    return koine.counters()["operations"]


# --- gradients that are changed in place ------------------------------------------------------------


@pytest.mark.parametrize("change, want", [
    (lambda p: p.grad.assign(p.grad.clip(-3, 3)), [2, 3, 3]),
    (lambda p: p.grad.__setitem__(0, 7), [7, 4, 6]),
    (lambda p: p.grad.__setitem__(slice(None), 0), [0, 0, 0]),
    (lambda p: p.grad.__setitem__(p.grad > 3, 1), [2, 1, 1]),
    (lambda p: p.grad.__setitem__(Tensor([2, 0]), 5), [5, 4, 5]),
    (lambda p: p.grad.__imul__(0.5), [1, 2, 3]),
    (lambda p: p.grad[1:].assign(9), [2, 9, 9]),
])
def test_what_is_assigned_to_a_gradient_is_the_gradient(change, want):
    for look in (lambda p: None, lambda p: p.grad.tolist(), lambda p: p.grad.realize()):
        p = with_gradient()
        look(p)
        change(p)
        assert p.grad.tolist() == want
        (p * p).sum().backward()  # adds to it
        assert p.grad.tolist() == [w + g for w, g in zip(want, [2, 4, 6])]
        nn.SGD([p], 1.0).step()
        assert p.tolist() == [v - w - g for v, w, g in zip([1, 2, 3], want, [2, 4, 6])]


def test_a_gradient_that_is_held():
    p = with_gradient()
    g = p.grad
    assert g.tolist() == [2, 4, 6]
    g[0] = 1  # looked at before
    g *= 2
    assert p.grad.tolist() == g.tolist() == [2, 8, 12]
    (p * p).sum().backward()
    with pytest.raises(ValueError, match="gradient of shape \\(3,\\) as it was before.*take grad again"):
        g[0] = 5
    assert p.grad.tolist() == [4, 12, 18]
    p.zero_grad()
    g[0] = 5  # a tensor as any other
    assert p.grad is None and g.tolist() == [5, 8, 12]


def test_gradients_are_changed_in_a_jitted_step():
    def step(x):
        p.zero_grad()
        (p * x).sum().backward()
        p.grad[0] = 1
        p.grad.assign(p.grad * 2)
        return p.grad.sum()

    p = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    f = koine.jit(step)
    for k in range(4):
        assert f(Tensor([1.0, 2.0, 3.0]) + k).item() == 2 + 2 * (2 + k) + 2 * (3 + k)
        assert p.grad.tolist() == [2, 2 * (2 + k), 2 * (3 + k)]
    assert len(f.explain_recompiles()) == 1  # at the first call there was no gradient


# --- what a step computes ----------------------------------------------------------------------------


def net_and_data():
    net = [nn.Linear(8, 16), nn.Linear(16, 4)]
    x, y = Tensor.rand(32, 8).realize(), Tensor.randint(32, low=0, high=4).realize()
    return net, lambda: net[1](net[0](x).relu()).cross_entropy(y)


@pytest.mark.parametrize("make", [nn.SGD, nn.AdamW])
def test_the_loss_is_computed_with_the_step(make):
    net, forward = net_and_data()
    optimizer = make(nn.get_parameters(net), 0.1)
    for _ in range(3):
        before = forward().item()
        loss = forward()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        koine.reset_counters()
        assert loss.item() == pytest.approx(before)
        assert koine.counters()["kernels"] == 0
    # Nobody holds it: it is not computed. What was looked at is not computed again.
    optimizer.zero_grad()
    forward().backward()
    alone = operations(optimizer.step)
    optimizer.zero_grad()
    loss = forward()
    loss.backward()
    loss.item()
    assert operations(optimizer.step) == alone


def test_several_losses_of_one_step():
    net, forward = net_and_data()
    optimizer = nn.SGD(nn.get_parameters(net), 0.1)
    losses = [forward() * k for k in (1.0, 2.0, 3.0)]
    optimizer.zero_grad()
    for loss in losses:
        loss.backward()
    optimizer.step()
    koine.reset_counters()
    first = losses[0].item()
    assert [loss.item() for loss in losses] == pytest.approx([first, 2 * first, 3 * first]) and koine.counters()["kernels"] == 0


def test_a_detached_state_costs_the_same_in_each_step():
    w = Tensor(np.eye(8, dtype=np.float32)).realize()
    h, want, costs = koine.zeros(4, 8), np.zeros((4, 8), np.float32), []
    for _ in range(8):
        h = ((h + 1) @ w).tanh().detach()
        want = np.tanh(want + 1)
        costs.append(operations(lambda: h.mean().item()))
        np.testing.assert_allclose(h.numpy(), want, 1e-5)
    assert len(set(costs[2:])) == 1, costs


def test_detached_tensors_that_nobody_holds_take_no_memory():
    x = Tensor([1.0, 2.0]).realize()

    def run(count):
        for _ in range(count):
            (x + 1).detach()
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096

    run(20_000)
    assert run(1) + 2_000_000 > run(100_000)


def test_a_state_through_time_is_computed_with_the_step():
    cell, out = nn.Linear(12, 8), nn.Linear(8, 1)
    optimizer = nn.Adam(nn.get_parameters([cell, out]), 0.01)
    h, costs = koine.zeros(4, 8), []
    for _ in range(6):
        def step(h):
            loss = 0.0
            for _ in range(3):
                h = cell(koine.cat([Tensor.ones(4, 4), h], 1)).tanh()
                loss = out(h).square().mean() + loss
            optimizer.zero_grad()
            loss.backward()
            carried = h.detach()
            optimizer.step()
            loss.item()
            return carried
        koine.reset_counters()
        h = step(h)
        costs.append(koine.counters()["operations"])
    assert len(set(costs[2:])) == 1, costs


def test_a_state_that_is_detached_behind_the_step_is_computed_with_the_next():
    w = Tensor(np.eye(8, dtype=np.float32) * 0.5, requires_grad=True)
    optimizer = nn.SGD([w], 0.01)

    def step(h):
        h = ((h + 1) @ w).tanh()
        loss = h.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        return h.detach()

    h, costs = koine.zeros(4, 8), []
    for _ in range(8):
        koine.reset_counters()
        h = step(h)
        costs.append(koine.counters()["operations"])
    assert len(set(costs[2:])) == 1, costs


def test_running_statistics_are_computed_with_the_step(rng):
    layer, norm = nn.Linear(6, 6), nn.BatchNorm(6)
    optimizer = nn.SGD(nn.get_parameters([layer, norm]), 0.0)
    mean, memory, costs = np.zeros(6), [], []
    for _ in range(8):
        x = Tensor(rng.standard_normal((16, 6)).astype(np.float32))
        loss = norm(layer(x), True).square().mean()
        optimizer.zero_grad()
        loss.backward()
        costs.append(operations(optimizer.step))
        mean = 0.9 * mean + 0.1 * layer(x).numpy().mean(0)
        memory.append(koine.memory_in_use())
        koine.reset_counters()
        np.testing.assert_allclose(norm.running_mean.numpy(), mean, 1e-4, 1e-6)
        assert koine.counters()["kernels"] == 0
    assert len(set(costs[2:])) == 1 and len(set(memory[2:])) == 1, (costs, memory)


# --- which weights -----------------------------------------------------------------------------------


def test_tied_weights_are_one_parameter():
    table, head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
    head.weight = table.weight
    parameters = nn.get_parameters([table, head, table])
    assert len(parameters) == 1
    optimizer = nn.SGD(parameters, 1.0)
    head(table(Tensor([1]))).sum().backward()
    want = (table.weight - table.weight.grad).numpy()
    optimizer.step()
    assert (table.weight.numpy() == want).all() and (head.weight.numpy() == want).all()


def test_frozen_weights_stay():
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
    for p in nn.get_parameters(layers[0]):
        p.requires_grad(False)
    assert [p.shape for p in nn.get_parameters(layers)] == [(2, 2), (2,)]
    before = layers[0].weight.numpy()
    optimizer = nn.SGD(nn.get_parameters(layers), 0.1)
    layers[1](layers[0](Tensor.ones(3, 2))).sum().backward()
    optimizer.step()
    assert (layers[0].weight.numpy() == before).all()


@pytest.mark.parametrize("make", [nn.SGD, nn.Adam, nn.AdamW])
def test_a_branch_that_was_not_taken_stays(make):
    a, b = Tensor([1.0], requires_grad=True), Tensor([2.0], requires_grad=True)
    optimizer = make([a, b], 0.1)
    for k in range(3):
        optimizer.zero_grad()
        (a * a).sum().backward()
        optimizer.step()
        assert a.item() != 1.0 and b.tolist() == [2.0]
    optimizer.zero_grad()
    with pytest.raises(ValueError, match=r"none of the 2 parameters has a gradient: call backward\(\) first"):
        optimizer.step()


def test_clipping_gives_the_norm_before():
    p, q = with_gradient([3.0]), with_gradient([4.0])
    optimizer = nn.SGD([p, q], 0.1)
    assert optimizer.clip_grad_norm(1.0).item() == 10.0
    assert p.grad.item() == pytest.approx(0.6) and q.grad.item() == pytest.approx(0.8)


def test_settings_of_layers_count_when_they_are_changed():
    x = Tensor([[1.0, 2.0], [3.0, 5.0]])
    norm = nn.LayerNorm(2)
    f = koine.jit(norm)
    first = f(x).numpy()
    norm.eps = 1.0
    assert not (f(x).numpy() == first).all() and (f(x).numpy() == norm(x).numpy()).all()
    assert "eps=1)" in repr(norm)
    batch = nn.BatchNorm(2)
    batch.momentum = 1.0
    batch(x, True)
    assert batch.running_mean.tolist() == [2.0, 3.5]
    conv = nn.Conv2d(1, 1, 1)
    conv.stride = 2
    assert conv(Tensor.ones(1, 1, 4, 4)).shape == (1, 1, 2, 2)


# --- refused -----------------------------------------------------------------------------------------


def plus(x, y):
    x += y


def minus(x, y):
    x -= y


def times(x, y):
    x *= y


@pytest.mark.parametrize("change", [plus, minus, times])
def test_in_place_results_of_another_kind_are_refused(change):
    for x, y in ((Tensor([1, 2]), 0.5), (Tensor([1, 2]), Tensor([0.5, 1.5])), (Tensor([1, 2], dtype="uint8"), 1.5)):
        before = x.tolist()
        with pytest.raises(TypeError, match="the result is float.., which (u?int..?) cannot hold: make a new tensor of it"):
            change(x, y)
        assert x.tolist() == before
    for x, y in ((Tensor([1.0]), 2), (Tensor([1.0], dtype="float16"), Tensor([2.5])), (Tensor([1], dtype="int8"), Tensor([2]))):
        change(x, y)  # of its kind
    if change is plus:
        with pytest.raises(TypeError, match="the result is int32, which bool cannot hold"):
            change(Tensor([True]), 1)


@pytest.mark.parametrize("name", ["mse_loss", "binary_crossentropy_logits"])
def test_a_target_of_another_rank_is_refused(name):
    x = Tensor.ones(4, 1)
    with pytest.raises(ValueError, match=rf"{name}: a target of shape \(4,\) makes a loss of shape \(4, 4\) of predictions of shape \(4, 1\)"):
        getattr(x, name)(Tensor.ones(4))
    assert np.isfinite(getattr(x, name)(1.0).item())


def test_gradient_takes_tensors_or_a_list_of_them():
    a, b = Tensor([1.0, 2.0], requires_grad=True), Tensor([3.0, 4.0], requires_grad=True)
    for targets in ((a, b), ([a, b],), ((a, b),)):
        found = (a * b).sum().gradient(*targets)
        assert [g.tolist() for g in found] == [[3, 4], [1, 2]]


def test_numbers_that_move_are_compiled_for_two_of_them():
    """Exponents, divisors, places and what stands in a loop: the third number finds all programs."""
    rng = np.random.default_rng(0)
    a, m = rng.random((4, 9), np.float32) + 0.5, rng.integers(-99, 99, (4, 9)).astype(np.int32)
    x, n = Tensor(a).realize(), Tensor(m).realize()
    moving = {
        "power": (lambda k: x ** (k + 0.5), lambda k: a ** np.float32(k + 0.5)),
        "slope of a power": (lambda k: koine.grad(lambda w: (w ** (k + 0.5)).sum())(x), lambda k: np.float32(k + 0.5) * a ** np.float32(k - 0.5)),
        "quotient": (lambda k: n // (k + 4), lambda k: m // (k + 4)),
        "remainder": (lambda k: n % (k + 4), lambda k: m % (k + 4)),
        "shift": (lambda k: (n << (k + 2)) >> (k + 5), lambda k: (m << (k + 2)) >> (k + 5)),
        "roll": (lambda k: x.roll(k + 2, 1), lambda k: np.roll(a, k + 2, 1)),
        "pad": (lambda k: x.pad(((0, 0), (k, 5 - k)), value=k + 0.5), lambda k: np.pad(a, ((0, 0), (k, 5 - k)), constant_values=k + 0.5)),
        "slope of a slice": (lambda k: koine.grad(lambda w: (w[:, k:k + 4] * 2).sum())(x), lambda k: np.pad(np.full((4, 4), 2.), ((0, 0), (k, 5 - k)))),
        "loop": (lambda k: koine.fori_loop(0, 3, lambda i, w: w * (k + 0.5), x), lambda k: a * np.float32(k + 0.5) ** 3),
    }
    for name, (ours, theirs) in moving.items():
        koine.clear_compile_cache()
        for k in range(1, 6):
            koine.reset_counters()
            got = ours(k).numpy()
            assert koine.counters()["compiled"] == 0 or k < 3, (name, k)
            np.testing.assert_allclose(got, theirs(k), rtol=1e-5, err_msg=name)
