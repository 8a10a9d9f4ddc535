"""Values, vjp, jvp and second derivatives of Koine's methods against PyTorch's on a CPU.

    torch_cases | python3 tests/torch/compare.py

Reads what tests/torch/cases.cpp writes. Prints every difference that is no known choice, and a summary; exits with 1
where there is one. `--list` prints those that are choices too.
"""
import collections
import json
import math
import sys

import torch
import torch.nn.functional as F

# Of each element, relative above 1. Those of narrow floats are compared with what PyTorch makes of the same numbers in
# float64: 8 units in their last place, for the roundings of intermediate values (4 were seen).
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 8 * 2**-10, torch.bfloat16: 8 * 2**-7}
NARROW = (torch.float16, torch.bfloat16)

# Where Koine chooses another slope than PyTorch, or has a number where PyTorch has none: docs/transforms.md, "Corners",
# has the reasons. Method, corner and fields.
SLOPES = ("jvp", "vjp")
DERIVATIVES = (*SLOPES, "second")
SECONDS = ("second", "forward_over_reverse", "reverse_over_forward")
CHOICES = {
    ("leaky_relu", "at 0"): SLOPES,
    ("leaky_relu", "at -0"): SLOPES,
    ("elu", "at 0"): ("second",),
    ("elu", "at -0"): ("second",),
    ("hardtanh", "at -0.5"): SLOPES,
    ("hardtanh", "at 1.5"): SLOPES,
    ("clip", "at -0.5"): SLOPES,
    ("clip", "at 1.5"): SLOPES,
    ("clip_tensors", "at low"): SLOPES,
    ("clip_tensors", "at high"): SLOPES,
    ("clip_tensors", "low is high"): SLOPES,
    ("max_pool2d", "equal elements"): SLOPES,
    ("norm", "at 0"): ("second",),
    ("pow", "at 0, 0.5"): ("second",),
    ("pow", "at 0, -1"): DERIVATIVES,
    ("prod", "-inf"): ("vjp", "second"),
    ("prod", "all -inf"): ("vjp", "second"),
    ("cumprod", "-inf"): ("jvp", "second"),
    ("var", "of none"): ("jvp",),
    ("var_0", "of none"): ("jvp",),
    ("var", "0-d"): ("second",),
    ("relu", "at nan"): SLOPES,
    ("leaky_relu", "at nan"): SLOPES,
    ("clip", "at nan"): SLOPES,
    ("maximum_0", "at nan"): ("jvp",),
    ("elu", "at nan"): DERIVATIVES,
    ("sign", "at nan"): ("value",),
    ("erf", "at inf"): ("second",),
    ("erf", "at -inf"): ("second",),
    ("erfc", "at inf"): ("second",),
    ("erfc", "at -inf"): ("second",),
    ("gelu", "at inf"): DERIVATIVES,
    ("gelu", "at -inf"): ("value", *DERIVATIVES),
    ("gelu_by_erf", "at inf"): DERIVATIVES,
    ("gelu_by_erf", "at -inf"): ("value", *DERIVATIVES),
    ("silu", "at inf"): DERIVATIVES,
    ("silu", "at -inf"): ("value", *DERIVATIVES),
    ("pow_half", "at -inf"): ("value", *DERIVATIVES),
    ("pow_three_halves", "at -inf"): DERIVATIVES,
    ("softmax", "0-d"): ("error",),
    ("log_softmax", "0-d"): ("error",),
}


def axes(a):
    return a["axes"] or None


def over(f):
    """Of a reduction that takes one axis alone, over several."""
    def run(x, a):
        dims = sorted((d % max(x.dim(), 1) for d in a["axes"] or range(x.dim())), reverse=True)
        for d in dims:
            x = f(x, d, True)
        if not a["keepdim"]:
            for d in dims:
                x = x.squeeze(d) if x.dim() else x
        return x
    return run


COLUMNS = torch.tensor([3, 0, 0])
ROWS = torch.tensor([2, 0, 2])
PLACES = torch.tensor([[0, 1], [2, 3], [0, 0]])
DIFFERENT = torch.tensor([[0, 1], [2, 3], [0, 2]])
TARGET = torch.tensor([2, 0, 3])


def set_items(x):
    y = (x * 2).clone()
    y[1] = x[0] * x[2]
    y[:, 3] = 1
    return y


def set_rows(x):
    y = (x * 2).clone()
    y[torch.tensor([2, 0])] = x[:2].sin()
    return y


def max_pool(x, a):
    return F.max_pool2d(x, a["kernel"], a["stride"], a["padding"])


def attention(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf)
    return scores.softmax(-1) @ v


def moves():
    return {
        "reshape": lambda x: x.reshape(2, 6),
        "flatten": lambda x: x.flatten(),
        "permute": lambda x: x.permute(1, 0),
        "expand": lambda x: x.unsqueeze(1).expand(3, 5, 4),
        "squeeze": lambda x: x.unsqueeze(0).squeeze(0),
        "flip": lambda x: x.flip(0, 1),
        "shrink": lambda x: x[1:3, 0:2],
        "pad": lambda x: F.pad(x, (2, 1, 1, 0), value=1.5),
        "cat": lambda x: torch.cat([x, x * x, x.sin()], 1),
        "stack": lambda x: torch.stack([x, x * x], 1),
        "roll": lambda x: x.roll(1, 1),
        "repeat": lambda x: x.repeat(2, 3),
        "split": lambda x: x.split(2, 1)[1],
        "chunk": lambda x: x.chunk(2, 1)[0],
        "slice": lambda x: x[0:3:2].flip(1),
        "position": lambda x: x[-1],
        "tril": lambda x: x.tril(),
        "triu": lambda x: x.triu(1),
        "index_select": lambda x: x.index_select(1, COLUMNS),
        "index": lambda x: x[ROWS, COLUMNS],
        "gather": lambda x: x.gather(1, PLACES),
        "setitem": set_items,
        "setitem_rows": set_rows,
    }


def moved(f):
    return lambda x, a: f(x.sin()).exp() if a.get("curved") else f(x)


METHODS = {
    "neg": lambda x, a: -x,
    "reciprocal": lambda x, a: x.reciprocal(),
    "sqrt": lambda x, a: x.sqrt(),
    "rsqrt": lambda x, a: x.rsqrt(),
    "exp": lambda x, a: x.exp(),
    "exp2": lambda x, a: x.exp2(),
    "log": lambda x, a: x.log(),
    "log2": lambda x, a: x.log2(),
    "sin": lambda x, a: x.sin(),
    "cos": lambda x, a: x.cos(),
    "tan": lambda x, a: x.tan(),
    "trunc": lambda x, a: x.trunc(),
    "floor": lambda x, a: x.floor(),
    "ceil": lambda x, a: x.ceil(),
    "round": lambda x, a: x.round(),
    "abs": lambda x, a: x.abs(),
    "sign": lambda x, a: x.sign(),
    "square": lambda x, a: x.square(),
    "relu": lambda x, a: x.relu(),
    "leaky_relu": lambda x, a: F.leaky_relu(x, 0.1),
    "sigmoid": lambda x, a: x.sigmoid(),
    "tanh": lambda x, a: x.tanh(),
    "erf": lambda x, a: x.erf(),
    "erfc": lambda x, a: x.erfc(),
    "gelu": lambda x, a: F.gelu(x, approximate="tanh"),
    "gelu_by_erf": lambda x, a: F.gelu(x),
    "silu": lambda x, a: F.silu(x),
    "softplus": lambda x, a: F.softplus(x),
    "elu": lambda x, a: F.elu(x, 0.7),
    "hardtanh": lambda x, a: F.hardtanh(x, -0.5, 1.5),
    "clip": lambda x, a: x.clamp(-0.5, 1.5),
    "maximum_0": lambda x, a: torch.maximum(x, torch.zeros((), dtype=x.dtype)),
    "pow_3": lambda x, a: x ** 3,
    "pow_2": lambda x, a: x ** 2,
    "pow_1": lambda x, a: x ** 1,
    "pow_0": lambda x, a: x ** 0,
    "pow_half": lambda x, a: x ** 0.5,
    "pow_three_halves": lambda x, a: x ** 1.5,
    "pow_minus_1": lambda x, a: x ** -1,
    "mod_1": lambda x, a: torch.remainder(x, 1.0),
    "cast": lambda x, a: x.float() * 3,
    "contiguous": lambda x, a: x.contiguous() * x,
    "detach": lambda x, a: x.detach() * x,
    "masked_fill": lambda x, a: x.masked_fill(x > 0.5, 2) * x,
    "add": lambda x, y, a: x + y,
    "sub": lambda x, y, a: x - y,
    "mul": lambda x, y, a: x * y,
    "div": lambda x, y, a: x / y,
    "maximum": lambda x, y, a: torch.maximum(x, y),
    "minimum": lambda x, y, a: torch.minimum(x, y),
    "pow": lambda x, y, a: x.pow(y),
    "mod": lambda x, y, a: torch.remainder(x, y),
    "where": lambda x, y, a: torch.where(x > y, x * y, y.sin()),
    "clip_tensors": lambda x, low, high, a: torch.clamp(x, low, high),
    "lerp": lambda x, end, weight, a: torch.lerp(x, end, weight),
    "sum": lambda x, a: x.sum(axes(a), a["keepdim"]),
    "prod": over(torch.prod),
    "max": lambda x, a: x.amax(a["axes"], a["keepdim"]),
    "min": lambda x, a: x.amin(a["axes"], a["keepdim"]),
    "mean": lambda x, a: x.mean(axes(a), a["keepdim"]),
    "var": lambda x, a: x.var(axes(a), correction=1, keepdim=a["keepdim"]),
    "var_0": lambda x, a: x.var(axes(a), correction=0, keepdim=a["keepdim"]),
    "std": lambda x, a: x.std(axes(a), correction=1, keepdim=a["keepdim"]),
    "logsumexp": lambda x, a: x.logsumexp(a["axes"] or list(range(x.dim())), a["keepdim"]),
    "norm": lambda x, a: torch.linalg.vector_norm(x, dim=axes(a), keepdim=a["keepdim"]),
    "softmax": lambda x, a: x.softmax(a["axis"]),
    "log_softmax": lambda x, a: x.log_softmax(a["axis"]),
    "cumsum": lambda x, a: x.cumsum(a["axis"]),
    "cumprod": lambda x, a: x.cumprod(a["axis"]),
    "cummax": lambda x, a: x.cummax(a["axis"]).values,
    "cummin": lambda x, a: x.cummin(a["axis"]).values,
    "sort": lambda x, a: x.sort(dim=a["axis"], stable=True).values,
    "sort_descending": lambda x, a: x.sort(dim=a["axis"], descending=True, stable=True).values,
    "topk": lambda x, a: x.topk(2, a["axis"]).values,
    "topk_smallest": lambda x, a: x.topk(2, a["axis"], largest=False).values,
    "layernorm": lambda x, a: F.layer_norm(x, x.shape[-a["last"]:]),
    "scatter_add": lambda x, y, a: x.scatter_add(1, PLACES, y).exp(),
    "scatter": lambda x, y, a: x.scatter(1, DIFFERENT, y).exp(),
    "matmul": lambda x, y, a: x @ y,
    "dot": lambda x, y, a: x.dot(y),
    "linear": lambda x, w, b, a: F.linear(x, w, b),
    "einsum": lambda *xs: torch.einsum(xs[-1]["formula"], *xs[:-1]),
    "conv2d": lambda x, w, b, a: F.conv2d(x, w, b, a["stride"], a["padding"], a["dilation"], a["groups"]),
    "max_pool2d": max_pool,
    "avg_pool2d": lambda x, a: F.avg_pool2d(x, a["kernel"], a["stride"], a["padding"]),
    "attention": lambda q, k, v, a: attention(q, k, v),
    "attention_masked": lambda q, k, v, a: attention(q, k, v, torch.ones(3, 3, dtype=torch.bool).tril()),
    "cross_entropy": lambda x, a: F.cross_entropy(x, TARGET),
    "cross_entropy_ignored": lambda x, a: F.cross_entropy(x, TARGET, ignore_index=0),
    "cross_entropy_smoothed": lambda x, a: F.cross_entropy(x, TARGET, label_smoothing=0.1),
    "nll_loss": lambda x, a: F.nll_loss(x.log_softmax(-1), TARGET),
    "mse_loss": lambda x, y, a: F.mse_loss(x, y),
    "binary_crossentropy_logits": lambda x, y, a: F.binary_cross_entropy_with_logits(x, y),
    **{name: moved(f) for name, f in moves().items()},
}


def running_statistics(x, weight, bias, mean, variance, a):
    """What F.batch_norm leaves in its buffers, with their history: it writes to them without one."""
    after = [mean.detach().clone(), variance.detach().clone()]
    F.batch_norm(x.detach(), *after, weight.detach(), bias.detach(), True, 0.3, 1e-3)
    return torch.stack([now.detach() + 0.7 * (t - t.detach()) for now, t in zip(after, (mean, variance))])


def evaluated(x, weight, bias, mean, variance, a):
    """F.batch_norm has no gradient by its statistics: that of what it computes, written out."""
    along = [t.reshape([-1] + [1] * (x.dim() - 2)) for t in (weight, bias, mean, variance)]
    weight, bias, mean, variance = along
    return (x - mean) / torch.sqrt(variance + 1e-3) * weight + bias


def dropout(x, a):
    kept = torch.tensor(a["kept"], dtype=torch.bool).reshape(x.shape)
    return torch.where(kept, x / (1 - a["p"]) if a["p"] < 1 else x, 0)


METHODS |= {
    "batchnorm_training": lambda x, w, b, m, v, a: F.batch_norm(x, None, None, w, b, True, 0.3, 1e-3),
    "batchnorm_evaluation": evaluated,
    "batchnorm_running": running_statistics,
    "dropout": dropout,
    "embedding": lambda w, a: F.embedding(torch.tensor([[3, 0], [3, 1]]), w).exp(),
}


def tensor(t):
    return torch.tensor(t["data"], dtype=getattr(torch, t["dtype"].lower())).reshape(t["shape"])


def operand(t):
    """What PyTorch computes with."""
    t = tensor(t)
    return t.double() if t.dtype in NARROW else t


def viewed(view, x):
    if view == "transpose":
        return x.transpose(-1, -2)
    if view == "step":
        return x[..., ::2]
    if view == "flip":
        return x.flip(-1)
    if view == "expand":
        return x.expand(3, *x.shape[1:])
    return x


def slopes(output, inputs, cotangent):
    """The vjp, with a history; 0 where there is no path."""
    if not output.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    found = torch.autograd.grad(output, inputs, cotangent, create_graph=True, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs)]


def tangent(f, inputs, tangents):
    """Forward mode; where PyTorch has none, the transpose of the vjp."""
    try:
        return torch.func.jvp(f, tuple(inputs), tuple(tangents))[1], True
    except (NotImplementedError, RuntimeError):
        at = [x.detach().requires_grad_() for x in inputs]
        output = f(*at)
        cotangent = torch.zeros_like(output).requires_grad_()
        pulled = slopes(output, at, cotangent)
        total = sum((g * t).sum() for g, t in zip(pulled, tangents))
        return slopes(total, [cotangent], None)[0], False


def second_derivatives(f, inputs, cotangent, weights):
    """Those of the cotangent's sum along the weights, by order of the modes, as far as PyTorch has both modes."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    total = sum((g * w).sum() for g, w in zip(slopes(f(*leaves), leaves, cotangent), weights))
    out = {"second": slopes(total, leaves, None)}

    def pulled(*xs):
        return torch.func.vjp(f, *xs)[1](cotangent)

    def pushed(*xs):
        return (torch.func.jvp(f, xs, tuple(weights))[1] * cotangent).sum()

    try:
        out["forward_over_reverse"] = torch.func.jvp(pulled, tuple(inputs), tuple(weights))[1]
        out["reverse_over_forward"] = torch.func.grad(pushed, tuple(range(len(inputs))))(*inputs)
    except (NotImplementedError, RuntimeError):
        pass
    return out


def difference(got, want, narrow=None):
    """`narrow`: the dtype of the operands, where PyTorch computed in float64."""
    if narrow and want.dtype == torch.float64:
        want = want.to(narrow)
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype} {tuple(got.shape)} instead of {want.dtype} {tuple(want.shape)}"
    near = (got == want) | (got.isnan() & want.isnan())
    near |= (got.double() - want.double()).abs() <= TOLERANCE[got.dtype] * want.double().abs().clamp(min=1)
    near &= got.isfinite() == want.isfinite()
    if bool(near.all()):
        return None
    return f"{got[~near].tolist()[:4]} instead of {want[~near].tolist()[:4]}"


def compared(case):
    """Differences by field; whether PyTorch has a forward mode here; whether its second derivatives differ by order."""
    inputs = [operand(t) for t in case["inputs"]]
    narrow = tensor(case["inputs"][0]).dtype if tensor(case["inputs"][0]).dtype in NARROW else None

    def f(*xs):
        return METHODS[case["method"]](viewed(case["view"], xs[0]), *xs[1:], case["arguments"])

    leaves = [x.clone().requires_grad_() for x in inputs]
    value = f(*leaves)
    pulled = slopes(value, leaves, operand(case["cotangent"]))
    seconds = second_derivatives(f, inputs, operand(case["cotangent"]), [operand(w) for w in case["weights"]])
    pushed, forward = tangent(f, inputs, [operand(t) for t in case["tangents"]])
    pairs = [("value", case["value"], value), ("jvp", case["jvp"], pushed)]
    pairs += [("vjp", g, w) for g, w in zip(case["vjp"], pulled)]
    found, alone = {}, False
    for field, got, want in pairs:
        words = difference(tensor(got), want.detach(), narrow)
        if words:
            found.setdefault(field, words)
    # The orders give one number. Where PyTorch's differ among themselves, reverse over reverse is right as well.
    for field in SECONDS:
        for k, got in enumerate(case[field]):
            words = [difference(tensor(got), seconds[of][k].detach(), narrow) for of in {field: 0, "second": 0} if of in seconds]
            if all(words):
                found.setdefault(field, words[0])
            alone = alone or any(words) and not all(words)
    return found, forward and len(seconds) == len(SECONDS), alone


def main():
    show = "--list" in sys.argv[1:]
    cases, values = collections.Counter(), 0
    backwards, disunited = collections.Counter(), collections.Counter()
    bad, chosen, seen, seed = collections.Counter(), collections.Counter(), set(), None
    for line in sys.stdin:
        case = json.loads(line)
        if "seed" in case:
            seed = case["seed"]
            continue
        method, what = case["method"], case["what"]
        cases[method] += 1
        name = f"{method}, {what}"
        for part in ("view", "arguments"):
            if case[part]:
                name += f", {case[part]}"
        if "error" in case:
            found, forward, alone = {"error": case["error"]}, True, False
        else:
            found, forward, alone = compared(case)
            values += 2 + 4 * len(case["inputs"])
            name += f", {case['inputs'][0]['dtype']}"
        if not forward:
            backwards[method] += 1
        if alone:
            disunited[method] += 1
        for field, words in found.items():
            key = "second" if field in SECONDS else field
            chosen_here = key in CHOICES.get((method, what), ())
            (chosen if chosen_here else bad)[method] += 1
            seen.add((method, what, key))
            if show or not chosen_here:
                print(f"{name}: {field} {words}{'  (a choice)' if chosen_here else ''}")
    for (method, what), fields in CHOICES.items():
        if not any((method, what, field) in seen for field in fields):
            print(f"no case of this seed shows the choice {method}, {what}")
    print(f"seed {seed}: {sum(cases.values())} cases of {len(cases)} methods, {values} tensors; PyTorch {torch.__version__}")
    print(f"no forward mode in PyTorch: {dict(backwards)}")
    print(f"second derivatives of PyTorch differ by the order of its modes: {dict(disunited)}")
    print(f"choices: {sum(chosen.values())}, by method {dict(chosen)}")
    print(f"differences: {sum(bad.values())}, by method {dict(bad)}")
    return 1 if bad or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
