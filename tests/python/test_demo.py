"""`python -m koine demo`, from any folder."""
import subprocess
import sys

import pytest

import koine
from koine import demo


def run(*args, folder):
    return subprocess.run([sys.executable, "-m", "koine", *args], cwd=folder, capture_output=True, text=True, timeout=300)


def test_the_demo_learns_digits(tmp_path):
    done = run("demo", "--epochs=4", "--save=net.safetensors", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:4]] == [["epoch", f"{k}/4"] for k in (1, 2, 3, 4)]
    assert lines[-2] == "model saved to net.safetensors" and lines[-1].startswith("test accuracy: ")
    assert float(lines[-1].split()[2]) > 92
    assert "30 kernels a step" in lines[-3]  # as `koine demo` says of C++: a batch is put together outside of the program
    net = demo.Net()
    koine.nn.load_state_dict(net, koine.safe_load(tmp_path / "net.safetensors"))
    images, labels = demo.read_digits()
    assert images.shape == (1797, 1, 8, 8) and labels.shape == (1797,)
    assert (net(images[:200]).argmax(1) == labels[:200]).sum().item() > 184


def test_what_the_demo_cannot_do_it_says(tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text("1,2,3\n")
    few = tmp_path / "few.csv"
    few.write_text(",".join(["1"] * 65) + "\n")
    for args, code, words in [(["--data=none.csv"], 1, "none.csv: cannot be read"), ([f"--data={bad}"], 1, "line 1"), ([f"--data={few}"], 1, "461 are needed"),
                              (["--epochs=0"], 2, "not 1 or more"), (["--save=no/where"], 1, "no/where")]:
        done = run("demo", *args, folder=tmp_path)
        assert done.returncode == code and words in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert run(folder=tmp_path).returncode == 2
    with pytest.raises(OSError):
        demo.read_digits("none.csv")
