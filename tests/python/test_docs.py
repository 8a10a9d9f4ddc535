"""What documents show runs, and the names of the package are all documented."""
import contextlib
import doctest
import importlib.util
import io
import pathlib
import re

import numpy as np
import pytest

import koine

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [p.name for p in sorted((ROOT / "docs").glob("*.md")) if "```python\n" in p.read_text()]
FENCE = re.compile(r"^```(\S*).*\n((?:.*\n)*?)```$", re.M)


def run_blocks(page, language="python"):
    """Runs a page's blocks of a language one after the other. A block `output` behind one is what it prints."""
    names = {"__name__": "page"}
    blocks = FENCE.findall((ROOT / "docs" / page).read_text())
    for (kind, code), (after, wanted) in zip(blocks, [*blocks[1:], ("", "")]):
        if kind != language:
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        if after == "output":
            assert printed.getvalue().rstrip() == wanted.rstrip()
    return names


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_the_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_blocks(page)


def test_there_are_pages():
    assert {"coming-from-jax.md", "coming-from-pytorch.md", "coming-from-tinygrad.md", "linear-walk.md", "python.md", "quickstart.md"} <= set(PAGES)


def rows_of(page, mark):
    """The code in the cells of the tables below a comment, a list for each row."""
    tables = re.findall(rf"<!-- {mark} -->\n+((?:\|.*\n)+)", (ROOT / "docs" / page).read_text())
    assert tables, f"{page}: there is no <!-- {mark} -->"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for table in tables for line in table.splitlines()[2:]]


def value_of(code, names):
    return eval(code.strip("`"), names)


def shown(code, names):
    """As the page shows it; of what is raised, also by looking, its kind."""
    try:
        value = value_of(code, names)
        return str(value.tolist() if hasattr(value, "tolist") else value)
    except Exception as e:
        return type(e).__name__


def array_of(value):
    value = value.detach() if hasattr(value, "detach") else value
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value).astype(np.float64)


@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("library, package", [("pytorch", "torch"), ("jax", "jax"), ("tinygrad", "tinygrad")])
def test_what_the_page_says_of_both(library, package, tmp_path, monkeypatch):
    """Our column always, theirs where it is installed: equal values in the one table, those that are shown in the other."""
    monkeypatch.chdir(tmp_path)
    page = f"coming-from-{library}.md"
    ours, theirs = run_blocks(page), None
    if importlib.util.find_spec(package) is not None:
        theirs = run_blocks(page, "py")
    equal, differ = rows_of(page, "equal"), rows_of(page, "differ")
    assert len(equal) >= 20 and len(differ) >= 6
    for there, here, *_ in equal:
        value = array_of(value_of(here, ours))
        if theirs is not None:
            wanted = array_of(value_of(there, theirs))
            assert wanted.shape == value.shape, (there, wanted, here, value)
            np.testing.assert_allclose(value, wanted, 1e-5, 1e-6, err_msg=f"{there}  {here}")
    for there, given, here, gives, *_ in differ:
        assert shown(here, ours) == gives.strip("`"), here
        if theirs is not None:
            assert shown(there, theirs) == given.strip("`"), there


def examples():
    """Each docstring with an example, of Python's and of the compiled part's."""
    seen = set()
    holders = [koine, koine.Tensor, koine._koine, koine.tree, koine.transforms, koine.loops, koine.random, koine.nn,
               koine.collective, koine.distributed]
    for holder in holders:
        for name in dir(holder):
            text = getattr(getattr(holder, name), "__doc__", None) or ""
            if ">>>" in text and text not in seen and not name.startswith("_"):
                seen.add(text)
                yield f"{getattr(holder, '__name__', holder)}.{name}", text


EXAMPLES = dict(examples())


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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
    names = set(re.findall(r"^  (?! )(?:static |const |explicit )*[\w:<>, &]+ [&*]?(\w+)\(", body, re.M)) - {"Tensor"}
    # By other names: operators, numpy() and tolist(), float(); grad and its like are attributes.
    elsewhere = {"from", "from_bytes", "borrow", "defined", "repr", "bytes", "data", "to_float", "set_grad", "has_grad", "assign_all",
                 "storage_id", "standing_for_number", "stands_for_number", "is_number", "operator", "setitem", "requires", "in_place", "compute_with"}
    assert len(names) > 100
    missing = sorted(n for n in names - elsewhere if not hasattr(koine.Tensor, n) and n != "realize")
    assert missing == [], missing
