"""Draws one program after each stage of the compiler: figures/stage-NAME.svg, and its C text as stage-render.inc; figures/plan-two.svg
is the host program of another one, of two kernels.

The graphs are those of `koine opt docs/programs/rowsum.txt --until=NAME`, drawn by `koine view`. Whole numbers and shapes are no boxes here: they
stand in the boxes that read them.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

KOINE = pathlib.Path(os.environ["KOINE_BUILD"]) / "apps/koine/koine"
PROGRAM, LARGER = "docs/programs/rowsum.txt", "docs/programs/rowmax.txt"
SHAPED = {"Param", "Buffer", "Reshape", "Expand"}  # their shapes are shown already
STAGES = ("callify", "rangeify", "optimize", "expand", "select", "linearize", "plan")
folder = pathlib.Path(sys.argv[1])


def run(*command):
    env = dict(os.environ, KOINE_CPU="x86-64-v2")
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True, env=env).stdout


def nodes_of(dot):
    """By name: its label's lines, its colour, its sources in order."""
    nodes = {}
    for name, label, colour in re.findall(r'^  (n\d+) \[label="(.*)", fillcolor="(.*)"\];$', dot, re.M):
        nodes[name] = (label.split("\\n"), colour, [])
    for source, name in re.findall(r"^  (n\d+) -> (n\d+) ", dot, re.M):
        nodes[name][2].append(source)
    return nodes


def op_of(nodes, name):
    return nodes[name][0][0].split()[1]


def folded(nodes):
    """The text of each node that is no box: a whole number, or several of them."""
    text = {}
    for name, (label, _, sources) in nodes.items():
        op = op_of(nodes, name)
        if op == "Const" and label[1].startswith("index "):
            text[name] = label[1].split()[1]
        elif op == "Stack" and all(s in text for s in sources):
            items = [text[s] for s in sources]
            text[name] = f"{items[0]}..{items[-1]}" if len(items) > 4 else items[0] if len(items) == 1 else f"({', '.join(items)})"
    return text


def label_of(name, nodes, text):
    lines, _, sources = nodes[name]
    op = op_of(nodes, name)
    inside = [text[s] for s in sources if s in text]
    if inside and op not in SHAPED:
        lines = [f"{lines[0]} ({', '.join(inside)})", *lines[1:]]
    return "\\n".join(lines)


HEAD = """digraph koine {
  node [shape=box, style="filled,rounded", color="#888888", fontname="Helvetica", fontsize=11, margin="0.08,0.04"];
  edge [color="#666666", arrowsize=0.6];
"""


def graph(nodes):
    """Boxes, and arrows from what is read."""
    text = folded(nodes)
    out = HEAD + "  ranksep=0.3; nodesep=0.2;\n"
    for name, (_, colour, sources) in nodes.items():
        if name not in text:
            out += f'  {name} [label="{label_of(name, nodes, text)}", fillcolor="{colour}"];\n'
            out += "".join(f"  {s} -> {name};\n" for s in sources if s not in text)
    return out + "}\n"


def listing(nodes):
    """Instructions below each other, in order, each further right inside of a loop."""
    text = folded(nodes)
    (last,) = [n for n, (label, _, _) in nodes.items() if label[0].split()[1] == "Linear"]
    listed = [n for n in nodes[last][2] if n not in text and op_of(nodes, n) not in {"Reshape", "Expand", "Group"}]

    def name_of(node):
        """As others read it: its number, or what is no instruction of its own."""
        if node in text or node in listed:
            return text.get(node) or "%" + node[1:]
        read = [name_of(s) for s in nodes[node][2]]
        return read[0] if op_of(nodes, node) in {"Reshape", "Expand", "After"} else f"{op_of(nodes, node)}({', '.join(read)})"

    rows, depth = "", 0
    for name in listed:
        label, colour, sources = nodes[name]
        op = op_of(nodes, name)
        depth -= op == "End"
        arg = f"[{label[1]}]" if len(label) > 2 else ""
        reads = ", ".join(name_of(s) for s in sources if op_of(nodes, s) != "Group") if op not in SHAPED else ""
        words = f"{'&#160;' * 8 * depth}{label[0]}{arg}{f'({reads})' if reads else ''}"
        kind = label[-1] if len(label) > 1 and op not in {"Param", "Buffer"} else label[-1].split(" ")[-1] if len(label) > 1 else ""
        rows += f'<TR><TD ALIGN="LEFT" BGCOLOR="{colour}">{words}</TD><TD ALIGN="LEFT">{kind}</TD></TR>'
        depth += op == "Range"
    return HEAD + f'  all [shape=plain, style="", label=<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="1">{rows}</TABLE>>];\n}}\n'


def draw(program, stage, picture):
    with tempfile.TemporaryDirectory() as scratch:
        at = pathlib.Path(scratch)
        (at / "text").write_text(run(KOINE, "opt", program, f"--until={stage}"))
        run(KOINE, "view", at / "text", "-o", at / "graph.dot")
        nodes = nodes_of((at / "graph.dot").read_text())
        (at / "drawn.dot").write_text(listing(nodes) if stage == "linearize" else graph(nodes))
        run("dot", "-Tsvg", at / "drawn.dot", "-o", folder / f"figures/{picture}.svg")


for stage in STAGES:
    draw(PROGRAM, stage, f"stage-{stage}")
draw(LARGER, "plan", "plan-two")
(folder / "stage-render.inc").write_text(run(KOINE, "opt", PROGRAM, "--until=render"))
