"""What documents show runs, and the names of the package are all documented."""
import doctest
import pathlib
import re

import pytest

import koine

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page, least", [("docs/python.md", 2), ("docs/linear-walk.md", 1)])
def test_the_blocks_of_the_page_run(page, least, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert len(blocks) >= least
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def examples():
    """Each docstring with an example, of Python's and of the compiled part's."""
    seen = set()
    holders = [koine, koine.Tensor, koine._koine, koine.tree, koine.transforms, koine.loops, koine.random, koine.nn]
    for holder in holders:
        for name in dir(holder):
            text = getattr(getattr(holder, name), "__doc__", None) or ""
            if ">>>" in text and text not in seen and not name.startswith("_"):
                seen.add(text)
                yield f"{getattr(holder, '__name__', holder)}.{name}", text


EXAMPLES = dict(examples())


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_docstrings_run(name):
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], {"koine": koine}, name, None, None)
    out = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=out.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(out)


def test_there_are_examples():
    assert len(EXAMPLES) >= 10, list(EXAMPLES)


def test_every_cpp_method_is_there():
    """The public methods of the C++ Tensor, from its header, have one of the same name here."""
    header = (ROOT / "src/koine/tensor/tensor.hpp").read_text()
    body = header[header.index("class Tensor {"):header.index("private:")]
    names = set(re.findall(r"^  (?:static |const |explicit )*[\w:<>, &]+ [&*]?(\w+)\(", body, re.M)) - {"Tensor"}
    # By other names: operators, numpy() and tolist(), float(); grad and its like are attributes.
    elsewhere = {"from", "from_bytes", "borrow", "defined", "repr", "bytes", "data", "to_float", "set_grad", "has_grad", "assign_all",
                 "storage_id", "operator", "setitem", "requires"}
    assert len(names) > 100
    missing = sorted(n for n in names - elsewhere if not hasattr(koine.Tensor, n) and n != "realize")
    assert missing == [], missing
