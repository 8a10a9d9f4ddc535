"""Trains a small convolutional net on 1,400 handwritten digits and tests it on 397 others: `python -m koine demo`."""
from __future__ import annotations

import pathlib
import random
import shutil
import sys
import time

import koine
from koine import Tensor, nn
from koine.errors import FileError

__all__ = ["Net", "read_digits", "train"]

BATCH, HELD_OUT = 64, 397


class Net:
    """Two convolutions, pooling, two dense layers: about 20,000 parameters."""

    def __init__(self) -> None:
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm(16)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden, self.out = nn.Linear(32 * 4 * 4, 32), nn.Linear(32, 10)

    def __call__(self, x: Tensor, training: bool = False) -> Tensor:
        """Images (n, 1, 8, 8) to logits (n, 10)."""
        h = self.norm(self.first(x), training).relu()
        h = self.second(h).relu().max_pool2d(2)
        return self.out(self.hidden(h.flatten(1)).relu())


def read_digits(path: str | None = None) -> tuple[Tensor, Tensor]:
    """Images (n, 1, 8, 8) from 0 to 1, and labels (n,), of a file that has a digit a line: 64 pixels from 0 to 16, and the label. Without
    a path the file that comes with the package."""
    file = pathlib.Path(path) if path else pathlib.Path(__file__).with_name("digits.csv")
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise FileError(f"{file}: cannot be read ({e}); pass --data with the path of digits.csv") from None
    pixels, labels = [], []
    for number, line in enumerate(lines, 1):
        cells = line.split(",")
        if len(cells) != 65 or not all(c.isdecimal() and int(c) <= 16 for c in cells):
            raise FileError(f"{file}, line {number}: it has not 65 numbers from 0 to 16")
        pixels += [int(c) / 16 for c in cells[:64]]
        labels.append(int(cells[64]))
    if not labels:
        raise FileError(f"{file}: no digits in it")
    return Tensor(pixels).reshape(len(labels), 1, 8, 8).realize(), Tensor(labels).realize()


class _Batches:
    """Batches of some digits, put together by Python beside the steps: the step's program reads them in order, and looks nothing up."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        rows = memoryview(images).cast("B")
        size = len(rows) // len(images)
        self.rows, self.labels = [rows[k * size:(k + 1) * size] for k in range(len(images))], labels.tolist()

    def __call__(self, chosen: list[int]) -> tuple[Tensor, Tensor]:
        pixels = memoryview(b"".join([self.rows[k] for k in chosen])).cast("f", (len(chosen), 1, 8, 8))
        return Tensor(pixels), Tensor([self.labels[k] for k in chosen])


def _show(where: str, loss: float, accuracy: float, done: float) -> None:
    """A line that is drawn over where there is a terminal, and a line an epoch where there is none."""
    line = f"{where}  loss {loss:.4f}  train accuracy {100 * accuracy:5.1f} %"
    if sys.stdout.isatty():
        width = min(24, shutil.get_terminal_size().columns - len(line) - 2)
        bar = "█" * int(width * done) + "░" * (width - int(width * done)) if width >= 4 else ""
        print(f"\r{where} {bar}{line[len(where):]}", end="\n" if done == 1 else "", flush=True)
    elif done == 1:
        print(line, flush=True)


def train(epochs: int = 14, seed: int = 7, data: str | None = None, save: str | None = None) -> float:
    """Trains the net, prints how it goes, and gives the part of the held out digits that it knows."""
    start = time.perf_counter()
    if save:  # training for nothing would be a pity
        try:
            open(save, "ab").close()
        except OSError as e:
            raise FileError(f"--save={save}: cannot be written ({e}): is the folder there and writable?") from None
    images, labels = read_digits(data)
    count = labels.shape[0]
    if count < HELD_OUT + BATCH:
        raise koine.errors.ValueError(f"the data has {count} digits, and {HELD_OUT + BATCH} are needed: {HELD_OUT} to test, a batch to train")
    Tensor.manual_seed(seed)
    shuffled = random.Random(seed)
    order = list(range(count))
    shuffled.shuffle(order)
    test, rest = order[:HELD_OUT], order[HELD_OUT:]
    net = Net()
    optimizer = nn.AdamW(nn.get_parameters(net), 4e-3, weight_decay=0.02)

    @koine.jit
    def learn(images: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        logits = net(images, training=True)
        loss, hits = logits.cross_entropy(classes), (logits.argmax(1) == classes).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, hits

    batch, steps = _Batches(images, labels), len(rest) // BATCH
    cold, warm, kernels = 0.0, 0.0, 0
    for epoch in range(epochs):
        shuffled.shuffle(rest)
        losses, right = 0.0, 0
        for step in range(steps):
            begin = time.perf_counter()
            koine.reset_counters()
            optimizer.learning_rate = nn.cosine_schedule(epoch * steps + step, epochs * steps, 4e-3, 1e-5, steps)
            loss, hits = learn(*batch(rest[step * BATCH:(step + 1) * BATCH]))
            losses, right = losses + loss.item(), right + hits.item()
            seconds = time.perf_counter() - begin
            cold, warm = (seconds, warm) if epoch == step == 0 else (cold, warm + seconds)
            kernels = koine.counters()["kernels"]
            _show(f"epoch {epoch + 1:2}/{epochs}", losses / (step + 1), right / ((step + 1) * BATCH), (step + 1) / steps)
    answer = koine.jit(lambda x: net(x).argmax(1))
    accuracy = (answer(images[Tensor(test)]) == labels[Tensor(test)]).cast("float32").mean().item()
    print(f"first step {cold * 1e3:.0f} ms  then {warm / max(1, epochs * steps - 1) * 1e3:.2f} ms a step, {kernels} kernels a step  "
          f"total {time.perf_counter() - start:.1f} s")
    if save:
        koine.safe_save(nn.get_state_dict(net), save)
        print(f"model saved to {save}")
    print(f"test accuracy: {accuracy * 100:.1f} %")
    return accuracy
