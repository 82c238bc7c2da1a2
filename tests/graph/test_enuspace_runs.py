"""Runs of imported enuSpace pages: the samples, and pages like its other examples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from enuspace_files import Drawn, Pin, Wires, svg, task

from rowgrad.graph import ClientSession, build
from rowgrad.graph.enuspace import read_enuspace

SAMPLES = Path(__file__).parent / "enuspace_samples"


def session_of(file: str) -> ClientSession:
    return ClientSession(build(read_enuspace(SAMPLES / file).page))


def test_the_basic_sample() -> None:
    assert session_of("basic.json").run_block()["ID_MUL.product"].tolist() == [[19.0], [-3.0]]
    assert session_of("basic_4x.svg").run_block()["ID_1hvgdT0.z"].tolist() == [[2.0, 4.0], [6.0, 8.0]]


def test_regression_of_three_weights_step_for_step() -> None:
    session = session_of("gradient_descent_xnwn_b.json")
    x = np.array(
        [[1, 5, 21], [15, 12, 22], [35, 13, 23], [4, 45, 24], [5, 15, 53], [6, 44, 7], [12, 17, 27], [6, 20, 28.0]]
    )
    y = np.array([[79.0], [110], [135], [171], [199], [120], [132], [135]])
    w, b, alpha = np.array([[1.5, 3.5, 0.5]]), np.array([[0.5]]), 0.001
    costs = []
    for _ in range(400):
        difference = (b + x @ w.T) - y
        cost = np.mean(difference * difference, axis=0, keepdims=True)
        w = w - alpha * np.mean(difference * x, axis=0, keepdims=True)
        b = b - alpha * np.mean(difference, axis=0, keepdims=True)
        got = session.run_block()
        np.testing.assert_allclose(got["ID_COST.output"], cost, rtol=1e-9)
        np.testing.assert_allclose(got["ID_APPLY.out"], w, rtol=1e-12)
        np.testing.assert_allclose(got["ID_1e1zPY122.out"], b, rtol=1e-12)
        costs.append(float(cost[0, 0]))
    assert costs[-1] < 0.01 * costs[0]


def test_one_weight_by_apply_gradient_descent_step_for_step() -> None:
    session = session_of("gradient_descent_xw_apply.svg")
    x = y = np.array([1.0, 2.0, 3.0])
    w, alpha, first = np.array([100.0]), 0.0001, None
    for _ in range(6000):
        difference = x * w - y
        cost = np.mean(difference * difference, keepdims=True)
        w = w - alpha * np.mean(difference * x, keepdims=True)
        got = session.run_block()
        first = float(cost[0]) if first is None else first
        assert got["ID_COST.output"] == pytest.approx(cost, rel=1e-12)
        assert got["ID_1eRwic0.out"] == pytest.approx(w, rel=1e-12)
    assert cost[0] < 0.01 * first


# -- pages like enuSpace's other examples, written in its formats -----------------------------------------------------


def text(elements: str) -> Pin:
    return Pin(elements=elements)


def const(kind: str, shape: str, elements: list[float]) -> Drawn:
    return Drawn("Const", {"val": Pin(kind, shape, elements)})


def variable(shape: str, values: str, dtype: str = "DT_DOUBLE") -> Drawn:
    pins = {
        "shape": text(shape),
        "dtype": text(dtype),
        "initvalues": text(values),
        "attrs": text("container_ =;shared_name_ =;"),
    }
    return Drawn("Variable", pins, ("ref",))


def pins(symbol: str, *names: str, out: str = "z", **typed: str) -> Drawn:
    given = {n: Pin() for n in names} | {n: text(v) for n, v in typed.items()}
    return Drawn(symbol, {"scope": text("scope"), **given}, (out,))


def import_all_formats(folder: Path, blocks: dict[str, Drawn], wires: Wires) -> list[ClientSession]:
    """Write a page in all three formats; return a session for each import."""
    found = []
    for name, content in (
        ("page.svg", svg(blocks, wires, 3)),
        ("page.svg", svg(blocks, wires, 4)),
        ("page.json", task(blocks, wires)),
    ):
        (folder / name).write_text(content, encoding="utf-16")
        imported = read_enuspace(folder / name)
        assert not [r for r in imported.report if r.level == "warning"]
        found.append(ClientSession(build(imported.page)))
    return found


def wires_to(target: str, **sources: str) -> Wires:
    return [(*source.split("."), target, pin) for pin, source in sources.items()]


def test_xor_with_derivatives_drawn_by_hand(tmp_path: Path) -> None:
    """Two sigmoid layers, the chain rule block by block, Assign to update the weights."""
    x = np.array([[0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1.0]])
    y = np.array([[0.0], [1.0], [1.0], [0.0]])
    w1 = np.array([[-0.2, 0.9, 0.4], [0.7, -0.6, 0.8], [0.1, 0.2, -0.9]])
    w2 = np.array([[0.6], [-0.7], [0.9]])
    rows = "{{-0.2,0.9,0.4},{0.7,-0.6,0.8},{0.1,0.2,-0.9}}"
    blocks = {
        "X": const("double", "[4][3]", x.ravel().tolist()), "Y": const("double", "[4][1]", y.ravel().tolist()),
        "ONE": const("double", "", [1]), "RATE": const("double", "", [2]),
        "W1": variable("{3,3}", rows), "W2": variable("{3,1}", "{{0.6},{-0.7},{0.9}}"),
        "M1": pins("MatMul", "a", "b", out="product"), "L1": pins("Sigmoid", "x", out="y"),
        "M2": pins("MatMul", "a", "b", out="product"), "L2": pins("Sigmoid", "x", out="y"),
        "E2": pins("Subtract", "x", "y"), "I2": pins("Subtract", "x", "y"), "S2": pins("Multiply", "x", "y"),
        "D2": pins("Multiply", "x", "y"),
        "E1": pins("MatMul", "a", "b", out="product", attrs="transpose_a_ = false;transpose_b_ = true"),
        "I1": pins("Subtract", "x", "y"), "S1": pins("Multiply", "x", "y"), "D1": pins("Multiply", "x", "y"),
        "T1": pins("Transpose", "x", out="y", perm="{1,0}"),
        "G2": pins("MatMul", "a", "b", out="product", attrs="transpose_a_=true;"),
        "G1": pins("MatMul", "a", "b", out="product"),
        "R2": pins("Multiply", "x", "y"), "R1": pins("Multiply", "x", "y"),
        "N2": pins("Add", "x", "y"), "N1": pins("Add", "x", "y"),
        "A2": pins("Assign", "ref", "value", out="output_ref", attrs="validate_shape_ = true;use_locking_ = true;"),
        "A1": pins("Assign", "ref", "value", out="output_ref"),
        "Q": pins("Square", "x", out="y"), "COST": pins("Mean", "input", out="output", axis="{0,1}"),
        "P": pins("Round", "x", out="y"), "OK": pins("Equal", "x", "y"),
        "F": pins("Cast", "x", out="y", DstT="DT_FLOAT"),
        "ACC": pins("Mean", "input", out="output", axis="{0,1}", attrs="keep_dims_ = false;"),
        "S": pins("ClientSession", "fetch_outputs", out="status", device="/cpu:0"),
    }  # fmt: skip
    wires = [
        *wires_to("M1", a="X.output", b="W1.ref"), *wires_to("L1", x="M1.product"),
        *wires_to("M2", a="L1.y", b="W2.ref"), *wires_to("L2", x="M2.product"),
        *wires_to("E2", x="Y.output", y="L2.y"), *wires_to("I2", x="ONE.output", y="L2.y"),
        *wires_to("S2", x="L2.y", y="I2.z"), *wires_to("D2", x="E2.z", y="S2.z"),
        *wires_to("E1", a="D2.z", b="W2.ref"), *wires_to("I1", x="ONE.output", y="L1.y"),
        *wires_to("S1", x="L1.y", y="I1.z"), *wires_to("D1", x="E1.product", y="S1.z"),
        *wires_to("T1", x="X.output"), *wires_to("G2", a="L1.y", b="D2.z"), *wires_to("G1", a="T1.y", b="D1.z"),
        *wires_to("R2", x="G2.product", y="RATE.output"), *wires_to("R1", x="G1.product", y="RATE.output"),
        *wires_to("N2", x="W2.ref", y="R2.z"), *wires_to("N1", x="W1.ref", y="R1.z"),
        *wires_to("A2", ref="W2.ref", value="N2.z"), *wires_to("A1", ref="W1.ref", value="N1.z"),
        *wires_to("Q", x="E2.z"), *wires_to("COST", input="Q.y"), *wires_to("P", x="L2.y"),
        *wires_to("OK", x="P.y", y="Y.output"), *wires_to("F", x="OK.z"), *wires_to("ACC", input="F.y"),
        *[(s, "output", "S", "fetch_outputs") for s in ("COST", "ACC")],
        *[(s, "output_ref", "S", "fetch_outputs") for s in ("A1", "A2")],
    ]  # fmt: skip
    sessions = import_all_formats(tmp_path, blocks, wires)
    first = None
    for _ in range(3000):
        l1 = 1 / (1 + np.exp(-(x @ w1)))
        l2 = 1 / (1 + np.exp(-(l1 @ w2)))
        d2 = (y - l2) * (l2 * (1 - l2))
        d1 = (d2 @ w2.T) * (l1 * (1 - l1))
        cost = np.mean((y - l2) ** 2)
        first = cost if first is None else first
        w2, w1 = w2 + 2 * (l1.T @ d2), w1 + 2 * (x.T @ d1)
        got = sessions[0].run_block()
        np.testing.assert_allclose(got["COST.output"], cost, rtol=1e-8)
        np.testing.assert_allclose(got["A1.output_ref"], w1, rtol=1e-8)
    assert cost < 0.01 * first
    assert got["ACC.output"] == np.float32(1.0)
    for other in sessions[1:]:
        for _ in range(20):
            last = other.run_block()
        sessions[0].reset()
        for _ in range(20):
            expected = sessions[0].run_block()
        assert {k: v.tobytes() for k, v in last.items()} == {k: v.tobytes() for k, v in expected.items()}


def test_xor_with_cross_entropy_and_apply_blocks(tmp_path: Path) -> None:
    """Tanh and a sigmoid, the loss from Log, Negate and AddN, one gradient block, hidden wires, an InputList."""
    blocks = {
        "X": const("float", "[4][2]", [0, 0, 0, 1, 1, 0, 1, 1]), "Y": const("float", "[4][1]", [0, 1, 1, 0]),
        "ONE": const("float", "", [1]), "RATE": const("float", "", [0.5]),
        "W1": variable("{2,4}", "{{0.5f,-0.8f,0.3f,0.9f},{-0.7f,0.6f,0.8f,-0.4f}}", "DT_FLOAT"),
        "B1": variable("{4}", "{0.1f,0.0f,-0.1f,0.2f}", "DT_FLOAT"),
        "W2": variable("{4,1}", "{{0.7f},{0.9f},{-0.5f},{0.6f}}", "DT_FLOAT"),
        "B2": variable("{1}", "{0.0f}", "DT_FLOAT"),
        "M1": pins("MatMul", "a", "b", out="product"), "Z1": pins("Add", "x", "y"), "H": pins("Tanh", "x", out="y"),
        "M2": pins("MatMul", "a", "b", out="product"), "Z2": pins("Add", "x", "y"), "P": pins("Sigmoid", "x", out="y"),
        "LP": pins("Log", "x", out="y"), "Q": pins("Subtract", "x", "y"), "LQ": pins("Log", "x", out="y"),
        "NY": pins("Subtract", "x", "y"), "A": pins("Multiply", "x", "y"), "B": pins("Multiply", "x", "y"),
        "AB": pins("AddN", "inputs", out="sum"), "LIST": pins("InputList", "outputlist", out="output"),
        "NEG": pins("Negate", "x", out="y"), "COST": pins("Mean", "input", out="output", axis="{0,1}"),
        "G": Drawn("AddSymbolicGradients", {"outputs": Pin(), "inputs": Pin()}, ("grad_outputs",)),
        **{f"U{k}": pins("ApplyGradientDescent", "var", "alpha", "delta", out="out") for k in range(4)},
        "S": pins("ClientSession", "fetch_outputs", out="status", INFINITE_LOOP="FALSE"),
    }  # fmt: skip
    weights = ["W1", "B1", "W2", "B2"]
    wires = [
        *wires_to("M1", a="X.output", b="W1.ref"), *wires_to("Z1", x="M1.product", y="B1.ref"),
        *wires_to("H", x="Z1.z"),
        *wires_to("M2", a="H.y", b="W2.ref"), *wires_to("Z2", x="M2.product", y="B2.ref"), *wires_to("P", x="Z2.z"),
        *wires_to("LP", x="P.y"), *wires_to("Q", x="ONE.output", y="P.y"), *wires_to("LQ", x="Q.z"),
        *wires_to("NY", x="ONE.output", y="Y.output"), *wires_to("A", x="Y.output", y="LP.y"),
        *wires_to("B", x="NY.z", y="LQ.y"), ("A", "z", "LIST", "outputlist"), ("B", "z", "LIST", "outputlist"),
        *wires_to("AB", inputs="LIST.output"), *wires_to("NEG", x="AB.sum"), *wires_to("COST", input="NEG.y"),
        ("COST", "output", "G", "outputs", "hidden"), *[(w, "ref", "G", "inputs", "hidden") for w in weights],
        *[("G", f"grad_outputs[{k}]", f"U{k}", "delta", "hidden") for k in range(4)],
        *[w for k, n in enumerate(weights) for w in wires_to(f"U{k}", var=f"{n}.ref", alpha="RATE.output")],
        ("COST", "output", "S", "fetch_outputs"), *[(f"U{k}", "out", "S", "fetch_outputs") for k in range(4)],
    ]  # fmt: skip
    for session in import_all_formats(tmp_path, blocks, wires):
        costs = [float(session.run_block()["COST.output"]) for _ in range(1500)]
        assert costs[-1] < 0.01 * costs[0]


def test_one_hot_from_a_binary_file(tmp_path: Path) -> None:
    labels = np.random.default_rng(3).integers(0, 10, 240).astype("<i4")
    (tmp_path / "page.dat").write_bytes(b"\0" * 16 + labels.tobytes())
    blocks = {
        "L": Drawn("Const", {"val": Pin("int", "[240]", dat=16)}), "D": const("int", "", [10]),
        "ON": const("double", "", [1]), "OFF": const("double", "", [0]),
        "H": pins("OneHot", "indices", "depth", "on_value", "off_value", out="output", attrs="axis_ = -1"),
        "M": pins("ArgMax", "input", out="output", dimension="1"),
        "S": pins("ClientSession", "fetch_outputs", out="status"),
    }  # fmt: skip
    wires = [
        *wires_to("H", indices="L.output", depth="D.output", on_value="ON.output", off_value="OFF.output"),
        *wires_to("M", input="H.output"), ("H", "output", "S", "fetch_outputs"), ("M", "output", "S", "fetch_outputs"),
    ]  # fmt: skip
    for session in import_all_formats(tmp_path, blocks, wires):
        got = session.run_block()
        assert got["H.output"].tolist() == np.eye(10)[labels].tolist()
        assert got["M.output"].tolist() == labels.tolist()
