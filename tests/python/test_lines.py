"""Which line of Python made what: in messages, in schedules, and of the first NaN (KOINE_NAN=1)."""
import inspect
import os
import subprocess
import sys
import textwrap

import pytest

import koine
from koine import Tensor, nn

HERE = os.path.basename(__file__)


def line():
    return inspect.currentframe().f_back.f_lineno


def test_spec_amend_39_a_node_knows_its_line_and_function():
    x = Tensor([1.0, 2.0, 3.0])
    y = x * 7.5; at = line()  # noqa: E702
    here = "test_spec_amend_39_a_node_knows_its_line_and_function"
    assert y.uop.origin == f"{HERE}:{at} in {here}"
    z = x * 7.5  # the same node
    assert z.uop == y.uop
    assert z.uop.origin == f"one of {HERE}:{at} in {here}, {HERE}:{at + 3} in {here}"


def test_spec_amend_39_layers_of_koine_are_not_the_users_lines():
    layer = nn.Linear(3, 2)
    y = layer(Tensor([[1.0, 2.0, 3.0]])); at = line()  # noqa: E702
    assert y.uop.origin.startswith(f"{HERE}:{at} in ")


def test_spec_amend_39_an_index_that_is_out_of_range_names_its_line():
    x, i = Tensor([1.0, 2.0, 3.0]), Tensor([0, 9])
    picked = x[i]; at = line()  # noqa: E702
    with pytest.raises(IndexError, match=f"made at {HERE}:{at} in "):
        picked.numpy()


def test_what_is_written_at_an_index_out_of_range_names_its_line():
    x, i = Tensor([1.0, 2.0, 3.0]).clone(), Tensor([0, 9])
    x[i] = 1.0; at = line()  # noqa: E702
    with pytest.raises(IndexError, match=f"setitem: position 9 .* made at {HERE}:{at} in "):
        x.numpy()


def test_what_does_not_fit_into_memory_names_its_line():
    rows = Tensor.zeros(10**6, 1)
    large = rows + Tensor.zeros(1, 10**6); at = line()  # noqa: E702
    with pytest.raises(MemoryError, match=rf"compute float32 of shape \(1000000, 1000000\), made at {HERE}:{at} in "):
        large.realize()
    assert rows.sum().item() == 0


def test_many_functions_have_lines_of_their_own():
    # More places than are remembered at a time, of code that is gone when it is asked for.
    tensors = []
    for k in range(3000):
        scope = {"x": Tensor([1.0, float(k)])}
        exec(compile(f"y = x * {k + 2}.25", f"made_{k}.py", "exec"), scope)
        tensors.append(scope["y"])
    for k in (0, 1, 1500, 2999):
        assert tensors[k].uop.origin == f"made_{k}.py:1"


def run(program, **environment):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120,
                          env=os.environ | environment)
    return done.stdout + done.stderr


NAN = """
    import koine
    from koine import Tensor, nn
    def loss(w, x):
        h = x @ w
        p = h.log()
        return p.sum()
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    w = Tensor([[1.0], [-2.0]], requires_grad=True)
    for f in (lambda: loss(w, x).item(), lambda: koine.jit(loss)(w, x).item()):
        try:
            f()
        except ValueError as e:
            print(e)
    g = (w + 2.0).sqrt().sum()
    g.backward()
    try:
        print(w.grad.tolist())
    except ValueError as e:
        print(e)
    opt = nn.SGD([w], learning_rate=1.0)
    try:
        opt.step()
        w.realize()
    except ValueError as e:
        print("step:", e)
    print(w.tolist())
"""


def test_spec_D6_the_first_nan_is_found_forward_backward_and_under_jit():
    out = run(NAN, KOINE_NAN="1")
    assert out.count("Log2 gives nan at [0, 0] of a float32 of shape (2, 1), from -3, made at <string>:6 in loss") == 2, out
    assert "gives inf at [1, 0]" in out and "made at <string>:15" in out, out
    assert "step: KOINE_NAN=1" in out, out
    assert "[[1.0], [-2.0]]" in out, out  # nothing has happened to it


def test_without_the_switch_nothing_is_looked_for():
    out = run(NAN)
    assert "KOINE_NAN" not in out


def test_kernels_name_their_lines():
    out = run("""
        from koine import Tensor
        x = Tensor([1.0, 2.0, 3.0])
        y = x * 2.5
        z = y.exp()
        z.sum().item()
    """, KOINE_DEBUG="2")
    assert "(<string>:4, 5, 6)" in out, out
