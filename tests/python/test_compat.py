"""The walk and the guide to UOps as a reader would type them in, mended as amendments C12 to C15 say."""
import re
import subprocess
import sys

import numpy as np
import pytest

import koine

IMPORTS = """
from koine.compat import (UOp, UOpGraph, UOps, UnaryOps, BinaryOps, TernaryOps, ReduceOps, BufferOps, MetalLanguage, uops_to_cstyle, Tensor,
                          dtypes, Variable, Node, NumNode, PtrDType, ImageDType, MultiLazyBuffer, Device, Linearizer, CompiledASTRunner, create_schedule,
                          run_schedule, lower_schedule_item, print_tree, to_function_name, flatten, dedup, compile)
g = UOpGraph()
"""


def typed(text, **names):
    """What a program leaves in its names."""
    exec(IMPORTS + text, names)
    return names


def run(graph, *buffers, **variables):
    koine.compat.compile(graph, "tester")(*buffers, **variables)


# --- the guide -----------------------------------------------------------------------------------


def test_spec_H1_two_tensors_are_added():
    c = typed("""
a = Tensor([1], dtype=int)
b = Tensor([2], dtype=int)
c = a + b
c.realize()
""")["c"]
    assert c.tolist() == [3] and c.dtype == koine.int32


def test_spec_H1_a_constant_is_declared():
    names = typed("""
c0 = g.add(UOps.CONST, dtypes.int, arg=0)
c1 = g.add(UOps.CONST, dtypes.int, arg=10)
""")
    c1 = names["c1"]
    assert (c1.uop, c1.dtype, c1.vin, c1.arg) == (names["UOps"].CONST, koine.int32, [], 10)
    assert len(names["g"].uops) == 2 and names["g"].uops[1] is c1 and names["g"].index(c1) == 1


STORED = """
c1 = g.add(UOps.DEFINE_GLOBAL, dtype=dtypes.int, vin=(), arg=(0, "data0", True))
c2 = g.add(UOps.CONST, dtype=dtypes.int, arg=0)
c3 = g.add(UOps.CONST, dtype=dtypes.int, arg=10)
store = g.add(UOps.STORE, vin=(c1, c2, c3))
"""


def test_spec_H1_a_graph_is_rendered_for_metal():
    text = typed(STORED + """
s = uops_to_cstyle(MetalLanguage(), 'tester', g)
""")["s"]
    assert "kernel void tester(device int* data0" in text and "data0[0] = 10;" in text


def test_spec_H1_a_parameter_is_defined():
    c1 = typed('c1 = g.add(UOps.DEFINE_GLOBAL, dtype=dtypes.int, vin=(), arg=(1, "data1", True))')["c1"]
    assert c1.arg == (1, "data1", True)


def test_spec_H1_a_loop_turns():
    names = typed("""
c0 = g.add(UOps.CONST, dtypes.int, arg=0)
c1 = g.add(UOps.CONST, dtypes.int, arg=10)
loop = g.add(UOps.LOOP, dtype=dtypes.int, vin=(c0, c1))
endloop = g.add(UOps.ENDLOOP, vin=(loop,))
""")
    assert names["loop"].vin == [names["c0"], names["c1"]]
    # Around a store, so that it is seen to turn: what the loop writes is its number.
    g = typed("""
out = g.add(UOps.DEFINE_GLOBAL, dtype=dtypes.int, vin=(), arg=(0, "data0", True))
c0 = g.add(UOps.CONST, dtypes.int, arg=0)
c1 = g.add(UOps.CONST, dtypes.int, arg=10)
loop = g.add(UOps.LOOP, dtype=dtypes.int, vin=(c0, c1))
g.add(UOps.STORE, vin=(out, loop, loop))
endloop = g.add(UOps.ENDLOOP, vin=(loop,))
""")["g"]
    out = np.zeros(10, np.int32)
    run(g, out)
    assert out.tolist() == list(range(10))
    assert re.search(r"for \(\w+ ridx0 = 0; ridx0 < 10; \+\+ridx0\) \{", koine.compat.uops_to_cstyle(koine.compat.MetalLanguage(), "t", g))


def test_spec_H1_a_constant_is_stored():
    g = typed(STORED)["g"]
    out = np.array([1, 2], np.int32)
    run(g, out)
    assert out.tolist() == [10, 2]  # what is beyond is nobody's


ADDED = """
c1 = g.add(UOps.DEFINE_GLOBAL, dtype=dtypes.int, vin=(), arg=(0, "data0", True))
x1 = g.add(UOps.DEFINE_GLOBAL, dtype=dtypes.int, vin=(), arg=(1, "data1", False))
x2 = g.add(UOps.DEFINE_GLOBAL, dtype=dtypes.int, vin=(), arg=(2, "data2", False))
pos_input = {}
x1_loaded = g.add(UOps.LOAD, dtype=dtypes.int, vin=(x1, pos_input))
x2_loaded = g.add(UOps.LOAD, dtype=dtypes.int, vin=(x2, pos_input))
c4 = g.add(UOps.ALU, dtype=dtypes.int, vin=(x1_loaded, x2_loaded), arg=BinaryOps.ADD)
pos = {}
store = g.add(UOps.STORE, vin=(c1, pos, c4))
"""


def test_spec_H1_an_element_is_loaded_and_added():
    place = "g.add(UOps.CONST, dtype=dtypes.int, arg=0)"
    g = typed(ADDED.format(place, place))["g"]
    out, x, y = np.zeros(3, np.int32), np.array([5, 6, 7], np.int32), np.array([30, 40, 50], np.int32)
    run(g, out, x, y)
    assert out.tolist() == [35, 0, 0]


def test_spec_H1_each_thread_adds_its_elements():
    g = typed(ADDED.format('g.add(UOps.SPECIAL, dtype=dtypes.int, arg=(0, "gidx0", 10))', "pos_input"))["g"]
    x, y = np.arange(10, dtype=np.int32), np.arange(10, dtype=np.int32) * 100
    out = np.zeros(10, np.int32)
    run(g, out, x, koine.Tensor(y))  # a tensor is read as well
    assert out.tolist() == (x + y).tolist()
    text = koine.compat.uops_to_cstyle(koine.compat.MetalLanguage(), "tester", g)
    assert "gidx0 = gid.x" in text and "val" not in text
    # Threads that would all store to one place are refused, as in the guide's last example (C13).
    race = typed(ADDED.format('g.add(UOps.SPECIAL, dtype=dtypes.int, arg=(0, "gidx0", 10))', "g.add(UOps.CONST, dtype=dtypes.int, arg=0)"))["g"]
    with pytest.raises(ValueError, match="gidx0"):
        run(race, out, x, y)


# --- the walk ------------------------------------------------------------------------------------

ROWS = [
    "DEFINE_GLOBAL : ptr.dtypes.int [] (0, 'data0', True)", "DEFINE_GLOBAL : ptr.dtypes.int [] (1, 'data1', False)",
    "DEFINE_GLOBAL : ptr.dtypes.int [] (2, 'data2', False)", "DEFINE_ACC : dtypes.int [] 0", "CONST : dtypes.int [] 0",
    "CONST : dtypes.int [] 2", "LOOP : dtypes.int [4, 5] None", "LOAD : dtypes.int [1, 6] None", "LOAD : dtypes.int [2, 6] None",
    "ALU : dtypes.int [7, 8] BinaryOps.MUL", "ALU : dtypes.int [9, 3] BinaryOps.ADD", "PHI : dtypes.int [3, 10, 6] None",
    "ENDLOOP : [6] None", "STORE : [0, 4, 11] None"
]


def rows_of(graph):
    return [re.sub(r" +", " ", line.split("UOps.", 1)[1]).strip() for line in str(graph).splitlines()[1:]]


def dot():
    a, b = koine.Tensor([3, 4], dtype=int).realize(), koine.Tensor([5, 6], dtype=int).realize()
    return (a * b).sum()


def test_spec_W3_corealize_runs_a_schedule():
    x = dot()
    names = typed("""
def corealize(lst):
    run_schedule(create_schedule(flatten([x.lazydata.lbs if isinstance(x.lazydata, MultiLazyBuffer) else [x.lazydata] for x in lst])))

schedule = create_schedule([x])
""", x=x)
    koine.reset_counters()
    assert koine.counters()["kernels"] == 0
    names["corealize"]([x])
    assert koine.counters()["kernels"] == 1
    assert x.item() == 39 and koine.counters()["kernels"] == 1  # it is data


def test_spec_W3_an_item_is_the_tree_of_the_document(capsys):
    names = typed("""
si = create_schedule([x])[0]
for op in si.ast: print_tree(op)
""", x=dot())
    tree = capsys.readouterr().out
    assert [line.split("data")[0].split()[1:3] for line in tree.splitlines()] == [
        ["━┳", "Store"], ["┗━┳", "Reduce"], ["┗━┳", "Mul"], ["┣━━", "Load"], ["┗━━", "Load"]]
    si, store = names["si"], names["si"].ast[0]
    assert len(si.ast) == 1 and len(si.outputs) == 1 and len(si.inputs) == 2 and si.outputs[0].device == "CPU"
    ops = names["BufferOps"], names["ReduceOps"], names["BinaryOps"]
    assert store.op is ops[0].STORE and store.arg.idx == 0 and store.arg.dtype == koine.int32
    total = store.src[0]
    assert total.op is ops[1].SUM and total.src[0].op is ops[2].MUL
    assert [(load.op, load.arg.idx, load.src) for load in total.src[0].src] == [(ops[0].LOAD, 1, ()), (ops[0].LOAD, 2, ())]


def test_spec_W3_an_item_becomes_a_program_step_by_step():
    names = typed("""
si = create_schedule([x])[0]
if si.ast[0].op is BufferOps.STORE: runner = Device[si.outputs[0].device].get_runner(*si.ast)
self = Device[si.outputs[0].device]
k = self.get_linearizer(*si.ast)
k.linearize()
ret = CompiledASTRunner(k.name, self.compiler.render(to_function_name(k.name), k.uops), self.dname, k.global_size, k.local_size,
                        k.uops.vars(), k.operations, k.bytes, outcount=len(k.outbufs))
prg = lower_schedule_item(si)
k.uops.uoptimize()
""", x=dot())
    assert rows_of(names["k"].uops) == ROWS
    for runner in (names["runner"], names["ret"], names["prg"]):
        out = np.zeros(1, np.int32)
        runner.exec([out, np.array([3, 4], np.int32), np.array([5, 6], np.int32)])
        assert out[0] == 39
        assert runner.dname == "CPU" and runner.outcount == 1 and f"void {runner.name}(" in runner.prg
        assert runner.op_estimate == 2 * 2 and runner.mem_estimate == 4 * 5 and runner.vars == []


def test_spec_W3_spec_W8_the_program_of_an_item_has_its_grid():
    a, b = koine.arange(24).reshape(4, 6).cast("int32").realize(), koine.ones(4, 6, dtype=koine.int32).realize()
    names = {}
    for device in ("CPU", "SIMT"):
        names[device] = typed("""
si = create_schedule([x])[0]
prg = lower_schedule_item(si)
k = Device[si.outputs[0].device].get_linearizer(*si.ast).linearize()
""", x=a.to(device).realize() * 2 + b.to(device).realize())
        out = np.zeros(24, np.int32)
        names[device]["prg"].exec([out, *[a.numpy().ravel() if m.idx == 1 else b.numpy().ravel() for m in names[device]["k"].bufs[1:]]])
        assert out.tolist() == [2 * v + 1 for v in range(24)]
    k, prg = names["CPU"]["k"], names["CPU"]["prg"]
    assert (k.global_size, k.local_size, prg.global_size, prg.local_size) == ([1, 1, 1],) * 4
    # A thread an element, and as rows SPECIAL.
    k, prg = names["SIMT"]["k"], names["SIMT"]["prg"]
    assert k.global_size == prg.global_size == [6, 4, 1] and k.local_size == prg.local_size == [1, 1, 1]
    assert prg.clprg.grid == (6, 4, 1) and {"SPECIAL : dtypes.int [] (0, 'gidx0', 6)", "SPECIAL : dtypes.int [] (1, 'gidx1', 4)"} <= set(rows_of(k.uops))
    with pytest.raises(ValueError, match=r"global_size is \[7, 1, 1\], and the rows of f have \[6, 4, 1\]"):
        koine.compat.CompiledASTRunner("f", prg.prg, "SIMT", [7, 1, 1])


def test_spec_W8_a_program_for_groups_of_threads_says_its_grid():
    x = koine.Tensor(np.arange(4096, dtype=np.float32)).to("SIMT").realize()
    program = koine.program_of(koine.schedule(x * 2)[0])
    assert program.device == "SIMT" and program.grid == (32, 1, 1) and program.group == (128, 1, 1) and program.threads == 1
    on_cpu = koine.program_of(koine.schedule(koine.Tensor(np.arange(4096, dtype=np.float32)).realize() * 2)[0])
    assert on_cpu.grid == on_cpu.group == (1, 1, 1)
    # Of a size that is a Variable the grid is an expression.
    n = koine.Variable("n", 1, 4096)
    program = koine.program_of(koine.schedule(x[:n.bind(700)] * 2)[0])
    assert program.variables == ["n"] and "n" in program.grid[0].render() and 1 <= program.grid[0].min <= program.grid[0].max <= 4096


def test_spec_W3_the_rows_are_added_as_linearize_does():
    names = typed("""
class Walk:
    def __init__(self, *ast):
        k = Linearizer(*ast)
        self.bufs, self.outbufs, self.uops, self.buf_uops, self.loop_uops = k.bufs, k.outbufs, UOpGraph(), {}, {}

    def const(self, value): return self.uops.add(UOps.CONST, dtypes.int32, arg=value)

    def linearize(self):
        for i,buf in enumerate(self.bufs):
            self.buf_uops[i] = self.uops.add(UOps.DEFINE_GLOBAL,
                                             buf.dtype if isinstance(buf.dtype, ImageDType) else PtrDType(buf.dtype), (),
                                             (buf.idx, f"data{buf.idx}", any(buf.idx == x.idx for x in self.outbufs)))
        localtype, this_const = dtypes.int32, 0
        acc = [self.uops.add(UOps.DEFINE_ACC, localtype, (), dtypes.as_const(this_const, localtype), cachable=False)]
        loop_ctx = (self.uops.add(UOps.LOOP, dtypes.int32, (self.const(0), self.const(2)), cachable=False),)
        values = [[self.uops.add(UOps.LOAD, dtypes.int32, (self.buf_uops[i],) + loop_ctx)] for i in (1, 2)]
        ret = [self.uops.add(UOps.ALU, val[-1].dtype, val, BinaryOps.MUL) for val in zip(*values)]
        ops = {ReduceOps.SUM: BinaryOps.ADD}
        input_acc = acc[:]
        for val, off in zip(zip(ret), [0]):
            acc[off] = self.uops.add(UOps.ALU, acc[off].dtype, vin=val+(acc[off],), arg=ops[ReduceOps.SUM])
        for off in range(len(acc)):
            if input_acc[off] != acc[off]:
                acc[off] = self.uops.add(UOps.PHI, input_acc[off].dtype, (input_acc[off], acc[off]) + tuple(loop_ctx))
        self.uops.add(UOps.ENDLOOP, vin=loop_ctx)
        self.uops.add(UOps.STORE, vin=(self.buf_uops[0], self.const(0), acc[0]))
        self.uops.uoptimize()

k = Walk(*create_schedule([x])[0].ast)
k.linearize()
""", x=dot())
    graph = names["k"].uops
    assert rows_of(graph) == ROWS
    out = np.zeros(1, np.int32)
    run(graph, out, np.array([3, 4], np.int32), np.array([5, 6], np.int32))
    assert out[0] == 39


def test_spec_W3_the_stages_of_today_are_called_by_hand():
    x = dot()
    koine.clear_compile_cache()
    koine.reset_counters()
    kernels = koine.schedule([x])
    assert len(kernels) == 1 and kernels[0].reason == "output" and kernels[0].stores(0) and not kernels[0].stores(1)
    stages = koine.lower_kernel(kernels[0], noopt=True)
    assert list(stages) == ["rangeify", "optimize", "expand", "select", "linearize"] and stages["linearize"].op == "Linear"
    assert "UOps.PHI" in koine.print_linear(stages["linearize"], legacy=True)
    assert koine.counters()["kernels"] == koine.counters()["compiled"] == 0
    program = koine.program_of(kernels[0])
    assert koine.counters()["compiled"] == 1 and koine.counters()["kernels"] == 0
    out = np.zeros(1, np.int32)
    program(out, np.array([3, 4], np.int32), np.array([5, 6], np.int32))
    assert out[0] == 39 and program.device == "CPU" and program.threads == 1 and program.variables == []
    assert x.item() == 39


def test_spec_W9_loops_are_rendered_from_variables():
    names = typed("""
from typing import List, Tuple, cast

class Walk:
    def __init__(self, full_shape):
        self.full_shape, self.uops, self.loop_uops = full_shape, UOpGraph(), {}
        self.first_reduce, self.group_for_reduces, self.shape_len, self.upcasted, self.render_ops = 0, 0, len(full_shape), 0, None

    def const(self, value): return self.uops.add(UOps.CONST, dtypes.int32, arg=value)

    def linearize(self):
        def render_loop(xx:List[Variable]) -> Tuple[UOp, ...]:
          new_loops = {x.expr:self.uops.add(UOps.LOOP, dtypes.int32, (
            self.const(x.min) if isinstance(x.min, int) else cast(Node, x.min).render(self.render_ops, self),
            self.const(x.max+1) if isinstance(x.max, int) else cast(Node, x.max+1).render(self.render_ops, self)), cachable=False) for x in xx if not isinstance(x, NumNode) and x.expr is not None}
          self.loop_uops.update(new_loops)
          return tuple(new_loops.values())

        # define indexes
        reduce_idxs = [Variable(f"ridx{i}", 0, self.full_shape[i]-1) for i in range(self.first_reduce+self.group_for_reduces, self.shape_len-self.upcasted)]
        fake_reduce_idxs = [x*0 for x in reduce_idxs]

        # reduce loop
        loop_ctx = render_loop(reduce_idxs)
        return reduce_idxs, fake_reduce_idxs, loop_ctx

k = Walk((2,))
reduce_idxs, fake_reduce_idxs, loop_ctx = k.linearize()
""")
    k, (x, ), (fake, ), (loop, ) = (names[n] for n in ("k", "reduce_idxs", "fake_reduce_idxs", "loop_ctx"))
    assert (x.name, x.expr, x.min, x.max) == ("ridx0", "ridx0", 0, 1)
    assert isinstance(fake, names["NumNode"]) and (fake.min, fake.max, int(fake), fake.render()) == (0, 0, 0, "0")
    assert not isinstance(x, names["NumNode"]) and not isinstance(x + 1, names["NumNode"])
    assert k.loop_uops == {"ridx0": loop} and [v.arg for v in loop.vin] == [0, 2]  # rows 4 to 6 of the document
    assert rows_of(k.uops) == ["CONST : dtypes.int [] 0", "CONST : dtypes.int [] 2", "LOOP : dtypes.int [0, 1] None"]


def test_spec_W9_a_variable_is_an_integer_with_special_methods():
    Variable, NumNode = koine.Variable, koine.compat.NumNode
    i, n = Variable("i", 0, 9), Variable("n", 1, 128)
    assert (i * 4 + 3) // 4 == i and (i * 4 + 3) % 4 == 3 and i - i == 0 and -(-i) == i and 2 * i == i + i and n * i == i * n
    for made, low, high, text in [(i * 2 + 1, 1, 19, "i*2+1"), (10 - i, 1, 10, "i*-1+10"), (i // 4, 0, 2, "i//4"), (i % 4, 0, 3, "i%4"),
                                  (i * 0 + 7, 7, 7, "7"), (i + n, 1, 137, "i+n"), (-i, -9, 0, "i*-1")]:
        assert (made.min, made.max, made.render(), repr(made)) == (low, high, text, text)
        values = [eval(text, {"i": a, "n": b}) for a in range(10) for b in (1, 128)]
        assert (min(values), max(values)) == (low, high), text  # sound, and here exact
    # A table of functions by class, as renderers of then had one: each is given (self, ops, ctx).
    ops = {Variable: lambda self, ops, ctx: f"{ctx}_{self.expr}", koine.Size: lambda self, ops, ctx: f"({self.render()})"}
    assert i.render(ops, "loop") == "loop_i" and (i + 1).render(ops) == "(i+1)"
    with pytest.raises(KeyError):
        i.render({NumNode: None})
    # Numbers for functions that are described.
    assert koine.grad(lambda x: (x * i.max).sum())(koine.Tensor([1.0])).tolist() == [9]
    # Equal arguments give equal ones; what ranges leave open nobody may ask.
    assert i == Variable("i", 0, 9) and i != Variable("i", 0, 8) and i != n and i != "i" and len({i, Variable("i", 0, 9), n}) == 2
    assert i < 10 and i >= 0 and n > 0 and not n > 128 and hash(i) == hash(i * 1)
    for ask in (lambda: i < 5, lambda: i == 5, lambda: bool(i * 2), lambda: int(i + 1), lambda: range(i + 1), lambda: 5 // i, lambda: i // 0):
        with pytest.raises(ValueError) as e:
            ask()
        assert isinstance(e.value, koine.Error)
    for ask in (lambda: i / 2, lambda: i + "1", lambda: i + 1.5):
        with pytest.raises(TypeError):
            ask()


def test_spec_W9_a_variable_is_usable_as_a_shape():
    n = koine.Variable("n", 1, 128)
    x = koine.zeros(n * 2, 3)
    assert x.shape[0].render() == "n*2" and x.shape[0] == 2 * n and x.shape[1] == 3
    with pytest.raises(KeyError, match="n"):
        x.sum().item()  # no value yet
    for k in (4, 100):
        y = koine.ones(n.bind(k) * 2, 3) + koine.ones(2 * n.bind(k), 1)
        assert y.sum().item() == 2 * k * 3 * 2 and y.shape[0].present == 2 * k and (y.shape[0].min, y.shape[0].max) == (2, 256)


def test_variables_are_given_by_name():
    g = typed("""
out = g.add(UOps.DEFINE_GLOBAL, dtypes.int, arg=(0, "data0", True, 8))
n = g.add(UOps.DEFINE_VAR, dtypes.int, arg=("n", 1, 8))
loop = g.add(UOps.LOOP, dtypes.int, (g.add(UOps.CONST, dtypes.int, arg=0), n))
g.add(UOps.STORE, vin=(out, loop, n))
g.add(UOps.ENDLOOP, vin=(loop,))
""")["g"]
    out = np.zeros(8, np.int32)
    run(g, out, n=3)
    assert out.tolist() == [3, 3, 3, 0, 0, 0, 0, 0] and [r.arg for r in g.vars()] == [("n", 1, 8)]
    for wrong, kind in [({}, KeyError), ({"n": 9}, ValueError), ({"n": 3, "m": 1}, TypeError), ({"n": 2.5}, TypeError)]:
        with pytest.raises(kind) as e:
            run(g, out, **wrong)
        assert isinstance(e.value, koine.Error)


def test_buffers_that_do_not_fit_are_refused():
    g = typed(ADDED.format("g.add(UOps.CONST, dtype=dtypes.int, arg=3)", "pos_input"))["g"]
    program = koine.compat.compile(g, "tester")
    x = np.arange(4, dtype=np.int32)
    read_only = x.copy()
    read_only.flags.writeable = False
    for buffers, kind, words in [((x, x), TypeError, "takes 3 buffers, got 2"), ((x[:3].copy(), x, x), ValueError, "12 bytes, of which 16"),
                                 ((x, x.astype(np.float32), x), TypeError, "elements of int32"), ((read_only, x, x), TypeError, "writable"),
                                 ((x, np.arange(8, dtype=np.int32)[::2], x), TypeError, "row-major"), ((x, 3, x), TypeError, "'int'"),
                                 ((koine.Tensor(x.copy()), x, x), TypeError, "writable"), ((x, x.astype(np.int64), x), TypeError, "int32")]:
        with pytest.raises(kind, match=words) as e:
            program(*buffers)
        assert isinstance(e.value, koine.Error)
    out = bytearray(16)
    program(out, x, memoryview(x).cast("B"))
    assert np.frombuffer(out, np.int32).tolist() == [0, 0, 0, 6]


def test_rows_that_do_not_fit_are_refused():
    names = typed("""
c = g.add(UOps.CONST, dtypes.int, arg=1)
other = UOpGraph().add(UOps.CONST, dtypes.int, arg=1)
""")
    g, UOps, dtypes = names["g"], names["UOps"], names["dtypes"]
    for call, kind, words in [
        (lambda: g.add(UOps.CONST, dtypes.int), ValueError, "arg is missing"),
        (lambda: g.add(UOps.CONST, arg=1), ValueError, "needs a dtype"),
        (lambda: g.add(UOps.CONST, dtypes.int, arg="1"), TypeError, "arg is a number"),
        (lambda: g.add(UOps.CONST, dtypes.int, arg=2**31), ValueError, "beyond int32"),
        (lambda: g.add(UOps.CONST, dtypes.int, arg=2**70), ValueError, "64 bits"),
        (lambda: g.add(UOps.CONST, "int33", arg=1), TypeError, "no dtype"),
        (lambda: g.add(UOps.LOOP, dtypes.int, vin=(names["c"],)), ValueError, "takes 2 sources"),
        (lambda: g.add(UOps.LOOP, dtypes.int, vin=names["c"]), TypeError, "tuple of rows"),
        (lambda: g.add(UOps.LOOP, dtypes.int, vin=(0, 10)), TypeError, "holds rows"),
        (lambda: g.add(UOps.LOOP, dtypes.int, vin=(names["c"], names["other"])), ValueError, "no row of this graph"),
        (lambda: g.add(UOps.DEFINE_GLOBAL, dtypes.int, arg=(0, "data0")), TypeError, "data0"),
        (lambda: g.index(names["other"]), ValueError, "none of this graph"),
        (lambda: koine.compat.uops_to_cstyle("Metal", "t", g), TypeError, "MetalLanguage"),
        (lambda: koine.compat.Linearizer(), TypeError, "ast of a ScheduleItem"),
        (lambda: koine.compat.CompiledASTRunner("f", "void f() {}"), TypeError, "compiler.render"),
        (lambda: koine.schedule(3), TypeError, "tensors or nodes"),
        (lambda: koine.schedule(koine.Tensor([1]) + 1)[0].stores(7), IndexError, "no buffer 7"),
    ]:
        with pytest.raises(kind, match=words) as e:
            call()
        assert isinstance(e.value, koine.Error)
    assert len(g) == 1
    big = g.add(UOps.CONST, dtypes.ulong, arg=2**64 - 1)
    assert big.arg == 2**64 - 1


def test_a_row_keeps_its_graph():
    row = typed("row = g.add(UOps.ALU, dtypes.int, (g.add(UOps.CONST, dtypes.int, arg=1),) * 2, BinaryOps.ADD, simplify=False)")["row"]
    import gc
    gc.collect()
    assert row.vin[0].arg == 1 and row.vin[1] is row.vin[0] and "BinaryOps.ADD" in repr(row)


def test_what_is_imported_here_is_not_imported_by_koine():
    program = "import sys, koine; print('koine.compat' in sys.modules, hasattr(koine.Tensor, 'lazydata'))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.split() == ["False", "False"]
