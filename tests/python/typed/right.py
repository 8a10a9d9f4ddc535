"""What a user writes with annotations; test_stubs.py gives it to a type checker and runs it."""
from typing import Dict, List, Tuple

import koine
from koine import DType, Tensor, nn


class Net:
    def __init__(self) -> None:
        self.hidden, self.out = nn.Linear(4, 16), nn.Linear(16, 3, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x).relu())


def loss_of(w: Tensor, x: Tensor) -> Tensor:
    return ((x @ w) / 2 - 1).square().sum()


def train(net: Net, steps: int) -> List[float]:
    optimizer = nn.Adam(nn.get_parameters(net), learning_rate=1e-3)
    losses: List[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(Tensor.rand(8, 4)).cross_entropy(Tensor.randint(8, low=0, high=3))
        loss.backward()
        optimizer.step([loss])
        losses.append(loss.item())
    return losses


def main() -> None:
    x: Tensor = Tensor([[1.0, 2.0], [3.0, 4.0]], dtype="float32", requires_grad=True)
    y: Tensor = 2 * x + 1 - x / x.sum(0, keepdim=True)
    shape: Tuple[int, ...] = y.shape
    dtype: DType = y.dtype
    mask: Tensor = y > 2
    part: Tensor = y[0, ::2]
    y[0] = 3.0
    same: Tensor = y.realize()
    gradient: Tensor = koine.grad(loss_of)(x, same)
    fast = koine.jit(loss_of)
    state: Dict[str, Tensor] = nn.get_state_dict(Net())
    kernels: List[koine.Kernel] = koine.schedule([gradient])
    reason: str = kernels[0].reason if kernels else ""
    zeros: Tensor = koine.where(mask, koine.zeros(2, 2), koine.cat([part.reshape(1, 1), part.reshape(1, 1)]))
    n = koine.Variable("n", 1, 8)
    size: koine.Size = 2 * n + 1
    text, most = size.render() + n.expr, size.max + n.min
    rows: Tensor = koine.zeros(n, 3).reshape(n * 3)
    print(text, most, rows.ndim, koine.ones(n.bind(2), 3).sum().item())
    print(shape, dtype, fast(x, same), len(state), reason, zeros.tolist(), train(Net(), 2), len(x), x.T.ndim)


if __name__ == "__main__":
    main()
