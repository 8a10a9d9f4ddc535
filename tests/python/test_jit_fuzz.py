"""Random functions that read, assign and differentiate tensors, under koine.jit and as they are written: results, tensors and
gradients are equal after each call, whatever happens to the tensors in between. KOINE_TEST_SEED and KOINE_TEST_CASES as in the C++
tests; a failure prints the function."""
import os

import koine
import numpy as np
from koine import Tensor, nn

SEED = int(os.environ.get("KOINE_TEST_SEED", "1"))
CASES = int(os.environ.get("KOINE_TEST_CASES", "150"))
CALLS = 6


class Skipped(Exception):
    pass


class Writer:
    """The source of a function `step(x)` over tensors of shape (3,): parameters p, plain ones t, an optimizer opt."""

    def __init__(self, rng):
        self.rng, self.lines, self.values, self.losses = rng, [], ["x"], []

    def pick(self, of):
        return of[self.rng.integers(len(of))]

    def state(self):
        return self.pick(["p[0]", "p[1]", "t[0]", "t[1]", "t[2]"])

    def operand(self):
        return self.pick(self.values) if self.rng.random() < 0.5 else self.state()

    def expression(self):
        a, b = self.operand(), self.operand()
        return self.pick([
            f"{a} + {b}", f"{a} * {b}", f"{a} - {b} * 0.5", f"({a}).sin()", f"({a}).tanh() + {b}", f"({a}).maximum({b})",
            f"{a} * ({b}).sum()", f"({a}).flip(0) + {b}", f"({a}).softmax(0)", f"({a}).detach() * {b}", f"({a} > {b}).where({a}, 0.25)",
            f"({a})[[2, 0, 0]] + {b}", f"{a} * 1", f"({a}).clip(-1, 1)"])

    def plain_expression(self):
        return f"({self.expression()}).detach()"

    def line(self):
        rng, t = self.rng, f"t[{self.rng.integers(3)}]"
        kind = self.pick(["value", "value", "value", "assign", "assign", "slice", "in place", "loss", "backward", "step", "zero", "grad",
                          "draw", "view", "loop", "helper", "swap"])
        if kind == "value":
            self.name(self.expression())
        elif kind == "assign":
            self.lines.append(f"{t}.assign({self.pick([self.expression, self.plain_expression, self.plain_expression])()})")
        elif kind == "slice":
            self.lines.append(f"{t}[{self.pick(['0', '1:', '::2', '-1'])}] = ({self.plain_expression()}).sum()")
        elif kind == "in place":
            name = f"s{len(self.lines)}"
            self.lines += [f"{name} = {t}", f"{name} {self.pick(['+=', '*=', '-='])} {self.plain_expression()}"]
        elif kind == "loss" or kind == "backward" and not self.losses:
            name = f"l{len(self.lines)}"
            self.lines.append(f"{name} = ({self.expression()} + {self.pick(['p[0]', 'p[1]', 'p[0] * p[1]'])}).square().{self.pick(['sum', 'mean'])}()")
            self.losses.append(name)
        elif kind == "backward":
            self.lines.append(f"{self.losses.pop(rng.integers(len(self.losses)))}.backward()")
        elif kind == "step":
            if rng.random() < 0.9:
                self.lines.append(f"({self.expression()} * p[0] + p[1]).square().sum().backward()")
            self.lines.append("opt.step()")
        elif kind == "zero":
            self.lines.append(self.pick(["opt.zero_grad()", "p[0].zero_grad()"]))
        elif kind == "grad":
            if rng.random() < 0.9:
                self.lines.append(f"({self.expression()} * p[0] + p[1]).sum().backward()")
            self.name(self.pick(["p[0].grad.detach() * 2", "p[1].grad.detach() + x"]))
        elif kind == "draw":
            self.name(self.pick(["Tensor.rand(3)", "Tensor.randn(3) * 0.1", "x.dropout(0.5)"]))
        elif kind == "view":
            name = f"w{len(self.lines)}"
            self.lines += [f"{name} = {t}[{self.pick(['0:2', '1:3', '::2'])}]",
                           self.pick([f"{name}.assign({name} * 2)", f"{name} += 1", f"{name}.assign(Tensor([3., 4.]))"])]
        elif kind == "loop":
            self.lines += [f"for k in range({rng.integers(1, 4)}):", f"    {t}.assign({t} * 0.5 + k)"]
        elif kind == "helper":
            self.name(f"helper({self.operand()}, {self.operand()})")
        elif kind == "swap":
            self.lines += [f"old = {t} * 1", f"{t}.assign(t[0].detach())", "t[0].assign(old.detach())"]

    def name(self, expression):
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        self.values.append(name)

    def text(self):
        for _ in range(self.rng.integers(2, 9)):
            self.line()
        out = [v for v in self.values[1:] + self.losses if self.rng.random() < 0.5]
        out += [v for v in ["x", "t[0]", "p[1]", "p[0].grad"] if self.rng.random() < 0.03]
        self.lines.append(f"return ({''.join(o + ', ' for o in out)})")
        return "def step(x):\n" + "".join(f"    {line}\n" for line in self.lines)


HELPER = """
def helper(a, b):
    t[2].assign((a * b).detach())
    return a.sum() * b
"""


def world(text, seed, wrap):
    """The tensors and the function, made anew."""
    rng = np.random.default_rng(seed)
    space = {"__name__": "random_step", "koine": koine, "Tensor": Tensor}
    space["p"] = [Tensor(rng.standard_normal(3).astype("f")).requires_grad() for _ in range(2)]
    space["t"] = [Tensor(rng.standard_normal(3).astype("f")).realize() for _ in range(3)]
    if rng.random() < 0.2:
        space["t"][1] = space["t"][0]  # one tensor by two names
    if rng.random() < 0.2:
        space["t"][2] = space["t"][1] * 1  # not computed yet
    kind = rng.integers(3)
    space["opt"] = (nn.SGD(space["p"], 0.1) if kind == 0 else nn.SGD(space["p"], 0.1, momentum=0.5) if kind == 1 else nn.Adam(space["p"], 0.1))
    exec(compile(HELPER + text, f"<case {seed}>", "exec"), space)
    space["step"] = wrap(space["step"])
    return space


def between(space, rng):
    """Something that others do with the tensors from call to call."""
    p, t = space["p"], space["t"]
    k, what = rng.integers(3), rng.integers(12)
    new = Tensor(rng.standard_normal(3).astype("f"))
    if what == 0:
        t[k].assign(new)
    elif what == 1:
        t[k] = new
    elif what == 2:
        p[k % 2].assign(new)
    elif what == 3:
        p[k % 2].zero_grad()
    elif what == 4:
        space["opt"].learning_rate = 0.01 * (1 + int(k))
    elif what == 5:
        (p[0] * new).sum().backward()
    elif what == 6:
        t[k][1:] = 2.0
    elif what == 7:
        t[k].assign(t[(k + 1) % 3] * 2)  # stays lazy
    elif what == 8:
        t[k].realize()
    elif what == 9:
        t[k] = t[(k + 1) % 3][0:3]  # a view of all
    elif what == 10:
        space["opt"].zero_grad()


def numbers(value):
    if isinstance(value, tuple):
        return [numbers(v) for v in value]
    return None if value is None else value.numpy().copy()


def state_of(space):
    p, t = space["p"], space["t"]
    return ([numbers(v) for v in p + t] + [numbers(v.grad) for v in p]
            + [numbers(v) for v in space["opt"]._tensors()] + [Tensor.rand(2).numpy()])


def run(text, seed, wrap):
    space, out, held = world(text, seed, wrap), [], []
    rng = np.random.default_rng(seed + 1)
    koine.manual_seed(seed)
    for call in range(CALLS):
        x = Tensor(rng.standard_normal(3).astype("f"))
        look = rng.random() < 0.5
        try:
            result = space["step"](x)
            seen = numbers(result) if look else None
            own = tuple(r for r in result if not any(r is other for other in space["p"] + space["t"]))
            held.append((own, numbers(own) if look else None))
        except (ValueError, TypeError, IndexError, AttributeError) as e:
            if "has written over since" in str(e):  # a limit of gradients as it is written
                raise Skipped from e
            seen = type(e).__name__
        out.append((seen, state_of(space) if rng.random() < 0.7 else None))
        between(space, rng)
    out.append([numbers(result) for result, _ in held])  # what was given stays as it is
    if not all(np.abs(v.numpy()).max() < 1e3 for v in space["p"] + space["t"] + list(space["opt"]._tensors())):
        raise Skipped  # what has grown so far says more of roundings
    for result, before in held:
        if before is not None:
            assert_equal(numbers(result), before, "a result changed later")
    return out, space["step"]


def assert_equal(got, expected, what):
    if isinstance(expected, (list, tuple)):
        assert isinstance(got, (list, tuple)) and len(got) == len(expected), what
        for a, b in zip(got, expected):
            assert_equal(a, b, what)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5, err_msg=what)
    else:
        assert got == expected and type(got) is type(expected), f"{what}: {got} and not {expected}"


def test_random_functions_with_state_are_those_as_written():
    described = skipped = 0
    for case in range(CASES):
        seed = SEED * 1_000_000 + case
        text = Writer(np.random.default_rng(seed)).text()
        what = f"KOINE_TEST_SEED={SEED}, case {case} (seed {seed}):\n{text}"
        try:
            expected, _ = run(text, seed, lambda f: f)
            got, step = run(text, seed, koine.jit)
        except Skipped:
            skipped += 1
            continue
        assert_equal(got, expected, what)
        described += bool(step._programs) and not any("as it is written" in why for why in step.explain_recompiles())
    assert described > CASES // 4 and skipped < 3 + CASES // 4, f"of {CASES} {described} were described in every call, {skipped} skipped"
