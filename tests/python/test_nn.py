"""Layers, optimisers, state and files."""
import copy
import math
import os
import pickle

import numpy as np
import pytest

import koine
from koine import Tensor, nn


class Net:
    def __init__(self):
        self.first, self.blocks = nn.Linear(4, 8), [nn.Linear(8, 8), {"out": nn.Linear(8, 3)}]
        self.norm, self.scale = nn.BatchNorm(8), Tensor([2.0]).requires_grad()
        self.rate = 0.5

    def __call__(self, x, training=True):
        x = self.norm(self.first(x).relu(), training)
        return self.blocks[1]["out"](self.blocks[0](x).tanh()) * self.scale


def test_state_has_the_names_of_attributes():
    net = Net()
    names = list(nn.get_state_dict(net))
    assert "first.weight" in names and "blocks.1.out.bias" in names and "norm.running_mean" in names and "scale" in names
    assert len(nn.get_parameters(net)) == 3 * 2 + 2 + 1


@pytest.mark.parametrize("make", [lambda p: nn.SGD(p, 0.05, momentum=0.9), lambda p: nn.Adam(p, 0.01), lambda p: nn.AdamW(p, 0.01)])
def test_training_lowers_the_loss(rng, make):
    koine.manual_seed(1)
    net = Net()
    x = Tensor(rng.standard_normal((64, 4)).astype("float32"))
    target = Tensor((x.numpy().sum(1) > 0).astype("int32"))
    optimizer = make(nn.get_parameters(net))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = net(x).cross_entropy(target)
        loss.backward()
        optimizer.step([loss])
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0] and all(math.isfinite(v) for v in losses)
    assert net.norm.running_mean.numpy().any()


def test_a_step_of_sgd_is_what_it_says():
    w = Tensor([1.0, 2.0]).requires_grad()
    optimizer = nn.SGD([w], learning_rate=0.1)
    (w * w).sum().backward()
    assert w.grad.tolist() == [2, 4]
    optimizer.step()
    np.testing.assert_allclose(w.numpy(), [0.8, 1.6], rtol=1e-6)
    optimizer.zero_grad()
    assert w.grad is None
    optimizer.learning_rate = 0.5
    assert optimizer.learning_rate == 0.5
    w.grad = [1.0, 1.0]
    optimizer.step()
    np.testing.assert_allclose(w.numpy(), [0.3, 1.1], rtol=1e-6)


def test_layers_compute_what_they_say(rng):
    x = rng.standard_normal((2, 3, 5, 5)).astype("float32")
    conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False)
    w = conv.weight.numpy()
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = np.zeros((2, 4, 3, 3))
    for i in range(3):
        for j in range(3):
            want[:, :, i, j] = np.einsum("ncij,ocij->no", padded[:, :, 2 * i:2 * i + 3, 2 * j:2 * j + 3], w)
    np.testing.assert_allclose(conv(Tensor(x)).numpy(), want, rtol=1e-4, atol=1e-5)
    assert conv.bias is None
    rows = rng.standard_normal((6, 8)).astype("float32")
    norm = nn.LayerNorm(8)(rows).numpy()
    np.testing.assert_allclose(norm, (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5), rtol=1e-4, atol=1e-5)
    table = nn.Embedding(10, 4)
    np.testing.assert_array_equal(table([[1, 2], [9, 0]]).numpy(), table.weight.numpy()[[[1, 2], [9, 0]]])
    drop = nn.Dropout(0.5)
    assert drop(Tensor([1.0, 2.0]), training=False).tolist() == [1, 2]
    assert set(np.unique(drop(koine.ones(100)).numpy())) <= {0.0, 2.0}
    layer = nn.Linear(3, 2)
    layer.weight = Tensor.ones(2, 3)
    layer.bias = None
    assert layer([[1.0, 2.0, 3.0]]).tolist() == [[6, 6]]


def test_files_bring_all_back(tmp_path):
    net, other = Net(), Net()
    path = tmp_path / "state.safetensors"
    koine.safe_save(nn.get_state_dict(net), path)
    nn.load_state_dict(other, koine.safe_load(os.fspath(path)))
    for name, t in nn.get_state_dict(net).items():
        assert nn.get_state_dict(other)[name].tolist() == t.tolist()
    with pytest.raises(koine.Error, match="unknown"):
        nn.load_state_dict(other, {**koine.safe_load(path), "more": Tensor(1.0)})
    path.write_bytes(b"\x00" * 20)
    with pytest.raises(koine.errors.FileError):
        koine.safe_load(path)


def test_a_compiled_program_in_a_file(tmp_path):
    x = Tensor([1.0, 2.0, 3.0]).realize()
    koine.save_program({"y": (x * 2).sum()}, {"x": x}, tmp_path / "p")
    program = koine.SavedProgram(tmp_path / "p")
    assert program({"x": Tensor([10.0, 20.0, 30.0])})["y"].item() == 120
    with pytest.raises(KeyError):
        program({})


def test_layers_say_what_they_are():
    for text in ["Linear(inputs=3, outputs=2, bias=True)", "Linear(inputs=3, outputs=2, bias=False)",
                 "Conv2d(inputs=4, outputs=6, kernel=3, stride=2, padding=1, dilation=1, groups=2, bias=True)",
                 "BatchNorm(features=4, eps=1e-05, momentum=0.1)", "LayerNorm(features=4, eps=1e-05)",
                 "Embedding(vocabulary=5, width=3)", "Dropout(p=0.3)"]:
        assert repr(eval(text, vars(nn))) == text
    layer = nn.Linear(3, 2)
    layer.weight = Tensor(1.0)  # no matrix: it shows no sizes
    assert repr(layer) == "Linear(inputs=?, outputs=?, bias=True)"
    assert repr(nn.Adam([Tensor([1.0], requires_grad=True)])) == "<Adam with learning_rate=0.001>"


def test_schedules_and_counters():
    assert nn.cosine_schedule(0, 10, 1.0) == 1 and nn.step_schedule(10, 5, 1.0, 0.1) == pytest.approx(0.01)
    koine.reset_counters()
    (Tensor([1.0, 2.0]) + 1).realize()
    assert koine.counters()["kernels"] >= 1
    assert "Call" in str(koine.host_program([(Tensor([1.0, 2.0]) + 1)]))
    assert ("CPU" in dict(koine.devices())) and koine.default_device() == "CPU"
    u = (Tensor([1.0]) + 1).uop
    assert u.op == "Add" and "Add" in str(u)


def test_layers_are_pickled(rng):
    x = Tensor(rng.standard_normal((2, 4, 6, 6)).astype("float32"))
    layers = [nn.Linear(6, 3), nn.Linear(6, 3, bias=False), nn.Conv2d(4, 2, 3, stride=2, padding=1, groups=2), nn.BatchNorm(4, eps=0.1),
              nn.LayerNorm(6, eps=0.5), nn.Dropout(0.25)]
    for layer in layers:
        again = pickle.loads(pickle.dumps(layer))
        how = {"training": False} if isinstance(layer, (nn.BatchNorm, nn.Dropout)) else {}
        np.testing.assert_array_equal(again(x, **how).numpy(), layer(x, **how).numpy())
        assert [t.is_leaf for t in nn.get_state_dict(again).values()] == [t.is_leaf for t in nn.get_state_dict(layer).values()]
    table = nn.Embedding(5, 2)
    assert pickle.loads(pickle.dumps(table)).weight.tolist() == table.weight.tolist()


def test_a_model_is_copied_whole():
    net = Net()
    other = copy.deepcopy(net)
    other.scale.assign([5.0])
    assert net.scale.item() == 2 and len(nn.get_parameters(other)) == len(nn.get_parameters(net))


class Scaled(nn.Linear):
    """A layer of the user's, with attributes of its own."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.scale, self.names = Tensor([2.0]).requires_grad(), ["a"]

    def __call__(self, x):
        return super().__call__(x) * self.scale


def test_a_layer_of_the_users_has_its_own_parameters():
    layer = Scaled(3, 4)
    layer.inner = nn.Linear(4, 4)
    assert list(nn.get_state_dict([layer])) == ["0.weight", "0.bias", "0.scale", "0.inner.weight", "0.inner.bias"]
    assert len(nn.get_parameters(layer)) == 5


COPIES = [copy.deepcopy, lambda what: pickle.loads(pickle.dumps(what)), lambda what: pickle.loads(pickle.dumps(what, 2))]


@pytest.mark.parametrize("copied", COPIES)
def test_copies_keep_classes_and_attributes(copied, rng):
    x = Tensor(rng.standard_normal((2, 3)).astype("float32"))
    layer = Scaled(3, 4)
    layer.note = "mine"
    for other in (copied(layer), copy.copy(layer)):
        assert type(other) is Scaled and other.note == "mine" and other.names == ["a"]
        np.testing.assert_array_equal(other(x).numpy(), layer(x).numpy())
    other = copied(layer)
    other.names.append("b")
    other.scale.assign([5.0])
    other.weight.assign(other.weight * 0)
    assert layer.names == ["a"] and layer.scale.item() == 2 and layer.weight.abs().sum().item() > 0


class Noise(nn.Dropout):
    scale = 1.0

    def __call__(self, x, training=True):
        return super().__call__(x, training) * self.scale


@pytest.mark.parametrize("copied", [copy.copy, *COPIES])
def test_a_dropout_of_the_users_keeps_its_attributes(copied):
    noise = Noise(0.25)
    noise.scale = 3.0
    other = copied(noise)
    assert type(other) is Noise and (other.p, other.scale) == (0.25, 3.0) and other(Tensor([1.0]), training=False).tolist() == [3.0]


@pytest.mark.parametrize("copied", COPIES)
def test_what_is_one_tensor_is_one_in_a_copy(copied):
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    last.weight = first.weight
    model = {"first": first, "last": last, "also": first.weight, "other": Tensor([1.0])}
    other = copied(model)
    assert len(nn.get_parameters(other)) == len(nn.get_parameters(model)) == 3
    other["first"].weight.assign(other["first"].weight * 0 + 3)
    for one in (other["last"].weight, other["also"]):
        assert (one.numpy() == 3).all()
    assert not (first.weight.numpy() == 3).any() and other["also"].is_leaf and not other["other"].is_leaf


OPTIMIZERS = [lambda p: nn.SGD(p, 0.05), lambda p: nn.SGD(p, 0.05, momentum=0.9, weight_decay=0.1, nesterov=True),
              lambda p: nn.Adam(p, 0.05, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.1), lambda p: nn.AdamW(p, 0.05, weight_decay=0.3)]


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_an_optimizer_goes_on_with_its_model(make, copied, rng):
    x, y = Tensor(rng.standard_normal((8, 3)).astype("float32")), Tensor(rng.standard_normal((8, 1)).astype("float32"))

    def train(net, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            (net(x) - y).square().mean().backward()
            optimizer.step()
        return net.weight.numpy(copy=True)

    net = nn.Linear(3, 1)
    optimizer = make(nn.get_parameters(net))
    train(net, optimizer, 3)
    optimizer.learning_rate = 0.02
    other = copied((net, optimizer))
    alone = copied(optimizer)
    want = train(net, optimizer, 3)
    assert type(other[1]) is type(optimizer) and other[1].learning_rate == 0.02 and repr(other[1]) == repr(optimizer)
    np.testing.assert_array_equal(train(*other, 3), want)
    assert len(alone._tensors()) == len(optimizer._tensors())


def test_training_goes_on_from_a_file(tmp_path):
    def make():
        koine.manual_seed(3)
        net = [nn.Linear(3, 4), nn.Linear(4, 1)]
        return net, nn.AdamW(nn.get_parameters(net), 0.05)

    def train(net, optimizer, steps):
        for k in range(steps):
            x = Tensor(np.random.default_rng(k).standard_normal((5, 3)).astype("float32"))
            optimizer.zero_grad()
            net[1](net[0](x).tanh()).square().mean().backward()
            optimizer.step()

    net, optimizer = make()
    train(net, optimizer, 3)
    both = {"net": net, "optimizer": optimizer}
    koine.safe_save(nn.get_state_dict(both), str(tmp_path / "both.safetensors"))
    train(net, optimizer, 2)
    other, again = make()
    nn.load_state_dict({"net": other, "optimizer": again}, koine.safe_load(str(tmp_path / "both.safetensors")))
    train(other, again, 2)
    state, expected = nn.get_state_dict(other), nn.get_state_dict(net)
    assert len(expected) == 4 and all(state[n].tolist() == t.tolist() for n, t in expected.items())
    assert list(nn.get_state_dict(optimizer))[:3] == ["power1", "power2", "m.0"]
    assert len(nn.get_parameters(both)) == 4
