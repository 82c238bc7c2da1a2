"""Mistakes that users make, and the whole text they read: what is wrong, and what to do about it."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from rowgrad._hints import did_you_mean, nearest, no_attribute
from rowgrad.checkpoint import Checkpoint
from rowgrad.cli import main
from rowgrad.graph import Scope, ops
from rowgrad.raw_ops import OPS

TABLE = np.ones((5, 3), np.float32)
GOLDEN = Path(__file__).parent / "golden/checkpoints"
INSIDE = "a value inside vjp"
FLATTEN = (
    "For a matrix of ids, one bag in each row, pass ids.reshape(-1) and"
    " segment_ids=np.repeat(np.arange(rows), columns)."
)
NO_OFFSETS = (
    "a vector of ids needs offsets or segment_ids, got neither. Pass offsets (where each bag begins) or segment_ids"
    " (the bag of each id), or a matrix of ids with one bag in each row."
)
MATRIX = "offsets must be None, because a matrix of ids defines its own bags. Drop offsets, or pass a vector of ids."


def text_of(call: Callable[[], Any], kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def check(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    assert text_of(call, kind) == text


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: rg.raw_ops.SparseSegmentMeanWithNumSegments(TABLE, [0, 1], [0, 1], -1), ValueError,
         "SparseSegmentMeanWithNumSegments: segment ids must be >= 0, got num_segments = -1. num_segments is the number"
         " of rows of the result: pass 0 or more."),
        (lambda: rg.raw_ops.SparseSegmentMean(TABLE, [[0, 1]], [0, 0]), ValueError,
         f"SparseSegmentMean: indices should be a vector. Got shape [1,2]. {FLATTEN}"),
        (lambda: rg.raw_ops.SparseSegmentMean(TABLE, [0, 1, 2], [0, 0]), ValueError,
         "SparseSegmentMean: segment_ids and indices should have same size. Got 2 segment ids for 3 ids."),
        (lambda: rg.raw_ops.SparseSegmentMean(TABLE, [0.0, 1.0], [0, 0]), ValueError,
         "SparseSegmentMean: indices must be one of int32, int64; got float32. Convert it to int64."),
        (lambda: rg.raw_ops.SparseSegmentMean(TABLE, np.array([True]), [0]), ValueError,
         "SparseSegmentMean: indices must be one of int32, int64; got bool. For a mask, pass the positions of its True"
         " elements."),
        (lambda: rg.raw_ops.SparseSegmentMean(TABLE, ["a"], [0]), ValueError,
         "SparseSegmentMean: indices must be one of int32, int64; got string"),
        (lambda: rg.raw_ops.SparseSegmentMean(TABLE, [[0], [1, 2]], [0, 0]), ValueError,
         "SparseSegmentMean: indices is a list of lists of different lengths. Make them equal, or for bags of ids pass"
         " all ids in one list, and the bag of each id in segment_ids."),
        (lambda: rg.raw_ops.SparseSegmentMeanWithNumSegments(TABLE, [0], [0], 2**60), ValueError,
         "SparseSegmentMeanWithNumSegments: segment ids must be < num_segments, got segment_ids[0] = 0, num_segments ="
         " 1152921504606846976. num_segments is the number of rows of the result: pass more than the largest segment"
         " id, and at most 2147483647."),
        (lambda: rg.raw_ops.SparseSegmentSumGrad(TABLE, [0], [0], 5, order="blockd"), ValueError,
         "SparseSegmentSumGrad: attribute order must be one of 'sequential', 'blocked'; got 'blockd'. Did you mean"
         " 'blocked'?"),
        (lambda: rg.raw_ops.GatherRows(TABLE, [[0, 1]]), ValueError,
         "GatherRows: indices should be a vector. Got shape [1,2]. For a matrix of ids, pass ids.reshape(-1) and"
         " reshape the result to (*ids.shape, …)."),
        (lambda: rg.vjp(np.square, (TABLE,), TABLE), TypeError,
         f"{INSIDE} supports rowgrad's ops only. Instead of np.square use rowgrad.dense_ops.Square."),
        (lambda: rg.vjp(np.sum, (TABLE,), TABLE), TypeError,
         f"{INSIDE} supports rowgrad's ops only. Instead of np.sum use rowgrad.dense_ops.Sum."),
        (lambda: rg.vjp(np.linalg.norm, (TABLE,), TABLE), TypeError,
         f"{INSIDE} supports rowgrad's ops only. np.linalg.norm would lose its gradient."),
        (lambda: rg.vjp(lambda x: TABLE * x, (TABLE,), TABLE), TypeError,
         f"{INSIDE} supports rowgrad's ops only. Instead of np.multiply use rowgrad.dense_ops.Mul."),
        (lambda: rg.vjp(lambda x: x.sum(), (TABLE,), TABLE), AttributeError,
         f"{INSIDE} has shape, dtype and ndim, but no sum. Instead of .sum use rowgrad.dense_ops.Sum."),
        (lambda: rg.vjp("SparseSegmentSum", TABLE, TABLE), TypeError,
         "vjp: inputs must be a tuple or a dict of the arguments, got an array. Write (array,)."),
        (lambda: rg.vjp(lambda x: 3.0, (TABLE,), TABLE), TypeError,
         "vjp: the function must return arrays, got float. Convert rows with rowgrad.densify."),
        (lambda: rg.vjp("SparseSegmentMeen", (TABLE, [0], [0]), TABLE[:1]), ValueError,
         "vjp: no op named 'SparseSegmentMeen'. Did you mean 'SparseSegmentMean'?"),
        (lambda: rg.vjp("xyzzy", (TABLE,), TABLE), ValueError,
         "vjp: no op named 'xyzzy'. `rowgrad ops` lists them all."),
        (lambda: rg.raw_ops.SparseSegmentMeen, AttributeError,
         "module 'rowgrad.raw_ops' has no attribute 'SparseSegmentMeen'. Did you mean 'SparseSegmentMean'?"),
        (lambda: rg.dense_ops.Reluu, AttributeError,
         "module 'rowgrad.dense_ops' has no attribute 'Reluu'. Did you mean 'Relu'?"),
        (lambda: ops.SparseSegmentMean(Scope.new_root_scope(), TABLE, [0], [0], sparse_gradent=True), TypeError,
         "SparseSegmentMean has no argument 'sparse_gradent'. Did you mean 'sparse_gradient'?"),
        (lambda: ops.SparseSegmentMeen, AttributeError,
         "module 'rowgrad.graph.ops' has no attribute 'SparseSegmentMeen'. Did you mean 'SparseSegmentMean'?"),
        (lambda: rg.sparse_segment_mean, AttributeError,
         "module 'rowgrad' has no attribute 'sparse_segment_mean'. Did you mean 'raw_ops.SparseSegmentMean'?"),
        (lambda: rg.chekpoint, AttributeError,
         "module 'rowgrad' has no attribute 'chekpoint'. Did you mean 'checkpoint'?"),
        (lambda: rg.raw_ops.SparseSegmentMean(TABLE, [0], [0], sparse_gradent=True), TypeError,
         "SparseSegmentMean has no argument 'sparse_gradent'. Did you mean 'sparse_gradient'?"),
    ],
)  # fmt: skip
def test_calls(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    check(call, kind, text)


def test_operations_inside_vjp_are_recorded_or_raise() -> None:
    """`np.shape` and `np.ndim` do not compute with values; everything else that NumPy offers raises."""
    seen: list[Any] = []
    rg.vjp(lambda x: seen.append((np.shape(x), np.ndim(x))) or rg.dense_ops.Square(x), (TABLE,), TABLE)
    assert seen == [((5, 3), 2)]
    for function in (np.asarray, np.exp, np.cumsum, np.matmul, lambda x: np.concatenate([x, TABLE])):
        with pytest.raises(TypeError, match=INSIDE):
            rg.vjp(lambda x, f=function: f(x, TABLE) if f is np.matmul else f(x), (TABLE,), TABLE)


def test_suggested_dense_ops_exist() -> None:
    from rowgrad.autodiff import _OP_OF

    assert all(name in OPS and OPS[name].op.layer == "dense" for name in _OP_OF.values())


def test_similar_names() -> None:
    assert did_you_mean("runn", ["run", "check"]) == "Did you mean 'run'?"
    assert did_you_mean("q", ["run", "check"], "Try --help.") == "Try --help."
    assert nearest("RELU", ["Relu"]) == ["Relu"]
    assert nearest(3, ["3"]) == []
    assert nearest("a" * 10**6, ["a" * 10**6]) == ["a" * 200]


def test_names_of_submodules() -> None:
    """A similar name of the module itself comes before the names of its submodules."""
    text = "module 'm' has no attribute {!r}. Did you mean {!r}?"
    for name, meant in {"Tabel": "Table", "embeding_bag": "f.embedding_bag", "EmbedingBag": "nn.EmbeddingBag"}.items():
        error = no_attribute("m", name, ["Table", "_Tabel"], inner=["nn.Table", "nn.EmbeddingBag", "f.embedding_bag"])
        assert str(error) == text.format(name, meant)
    assert str(no_attribute("m", "_x", ["_y"], "Try z.")) == "module 'm' has no attribute '_x'"
    assert len(dir(rg)) == len({*dir(rg)})


def test_to_scipy_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    sparse = rg.SparseTensor.from_dense(TABLE)
    check(sparse.to_scipy, ImportError, "SparseTensor.to_scipy needs SciPy: pip install 'rowgrad[scipy]'")


# -- the package's attributes -----------------------------------------------------------------------------------------


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_modules_load_on_first_use() -> None:
    code = (
        "import sys, rowgrad as rg; before = {'rowgrad.optim', 'rowgrad.checkpoint', 'rowgrad.graph'} & {*sys.modules};"
    )
    code += (
        "print(before, rg.checkpoint.Checkpoint.__name__, rg.optim.__name__, rg.graph.Page.__name__, 'jax' in dir(rg))"
    )
    assert run_python(code) == "set() Checkpoint rowgrad.optim Page True"


def test_modules_without_their_library_are_not_attributes() -> None:
    code = "import sys; sys.modules['jax'] = None; import rowgrad as rg; print(hasattr(rg, 'jax'))\n"
    code += "try: rg.jax\nexcept AttributeError as error: print(error)\n"
    code += "try: from rowgrad import jax\nexcept ImportError as error: print(error)"
    needs = "rowgrad.jax needs JAX: pip install 'rowgrad[jax]'"
    assert run_python(code).splitlines() == ["False", needs, needs]


def test_every_extra_that_messages_name_exists() -> None:
    import re
    import tomllib

    root = Path(__file__).parents[1]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = [path.read_text() for path in (root / "src/rowgrad").rglob("*.py")]
    calls = r"missing_extra\([^)]*\"(\w+)\"\)|install_command\([\"'](\w+)[\"']\)"
    named = {next(filter(None, found)) for source in sources for found in re.findall(calls, source)}
    assert {"torch", "jax", "scipy", "studio", "cli", "notebook"} == named <= set(extras)
    assert sum("pip install 'rowgrad[" in source for source in sources) == 1, (
        "commands come from _hints.install_command"
    )


# -- checkpoints ------------------------------------------------------------------------------------------------------


def copy(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for source in (GOLDEN / "dtypes").glob("*.*"):
        for name in names:
            shutil.copy(source, folder / f"{name}{source.name[source.name.index('.') :]}")


def test_a_folder_with_one_checkpoint(tmp_path: Path) -> None:
    assert not list((GOLDEN / "dtypes").glob("*.*.*.*")), "names below have one dot before the ending"
    check(
        lambda: Checkpoint(tmp_path), rg.errors.CheckpointNotFoundError,
        f"{tmp_path}/checkpoint: no such file. The folder has no .index file either.",
    )  # fmt: skip
    copy(tmp_path, "model-5")
    found = Checkpoint(tmp_path)
    assert found.prefix == tmp_path / "model-5"
    assert found.names() == Checkpoint(tmp_path / "model-5").names()
    check(
        lambda: Checkpoint(tmp_path / "model-6"), rg.errors.CheckpointNotFoundError,
        f"{tmp_path}/model-6.index: no such file. Did you mean 'model-5'?",
    )  # fmt: skip
    copy(tmp_path, "model-7")
    check(
        lambda: Checkpoint(tmp_path), rg.errors.CheckpointError,
        f"{tmp_path}: the folder has 2 checkpoints and no file that names the latest. Pass one of model-5, model-7.",
    )  # fmt: skip
    data = next(tmp_path.glob("model-5.data-*"))
    check(
        lambda: Checkpoint(data), rg.errors.CheckpointError,
        f"{data}: this file holds the bytes of a checkpoint. Pass '{tmp_path}/model-5', the name without the ending.",
    )  # fmt: skip


def test_a_saved_model(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").touch()
    copy(tmp_path / "variables", "variables")
    check(
        lambda: Checkpoint(tmp_path), rg.errors.CheckpointNotFoundError,
        f"{tmp_path}/checkpoint: no such file. It is a SavedModel: pass '{tmp_path}/variables/variables'.",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ending", "kind"), [("keras", "a Keras archive"), ("h5", "an HDF5 file"), ("pt", "a PyTorch file")]
)
def test_files_of_other_formats(ending: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"model.{ending}"
    path.write_bytes(b"PK")
    check(
        lambda: Checkpoint(path), rg.errors.CheckpointError,
        f"{path}: this is {kind}, not a checkpoint. Save one with tf.train.Checkpoint(model=model).write(path), or read"
        " the arrays with the library of that format (.keras, .h5: h5py).",
    )  # fmt: skip


# -- the command line -------------------------------------------------------------------------------------------------


def test_bare_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("usage: rowgrad")
    assert "example:\n  rowgrad run page.json" in shown.out
    assert not shown.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["runn"], "rowgrad: no command 'runn'; did you mean 'run'?"),
        (["xyzzyq"], "rowgrad: no command 'xyzzyq'; choose from run, check, export, import, studio, reshard, ops,"
         " catalog, tour, bench, completion; see `rowgrad --help`"),
        (["run", "page.json", "--stps", "3"], "rowgrad run: unknown: --stps 3; did you mean --steps?"),
        (["--jsno"], "rowgrad: unknown: --jsno; did you mean --json?"),
        (["tour", "--xyzzyq"], "rowgrad tour: unknown: --xyzzyq; see `rowgrad tour --help`"),
        (["ops", "SparseSegmentMeen"], "rowgrad ops: no operator 'SparseSegmentMeen'; did you mean SparseSegmentMean?"),
    ],
)  # fmt: skip
def test_misspelled_commands(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"{text}\n"


def test_misspelled_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.json").touch()
    (tmp_path / "pages").mkdir()
    for arguments, text in (
        (["run", "paeg.json"], "rowgrad run: paeg.json: No such file or directory; did you mean page.json?"),
        (["run", "xyzzyq"], "rowgrad run: xyzzyq: No such file or directory"),
        (["check", "gone/page.json"], "rowgrad check: gone/page.json: No such file or directory"),
        (["studio", "page.jsn"], "rowgrad studio: page.jsn: no such folder; --new creates it; did you mean page.json?"),
        (["studio", "pgaes.json"], "rowgrad studio: pgaes.json: no such page; did you mean page.json?"),
    ):
        assert main(arguments) == 3
        assert capsys.readouterr().err == f"{text}\n"


# -- torch ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    pytest.importorskip("torch.nn")
    return importlib.import_module("torch")


def test_ids_of_torch_lookups(torch: Any) -> None:
    bag = rg.torch.nn.EmbeddingBag(5, 3, mode="sum")
    ids, starts = torch.tensor([0, 1]), torch.tensor([0])
    check(lambda: bag(ids), ValueError, NO_OFFSETS)
    check(lambda: bag(ids[None], starts), ValueError, MATRIX)
    check(
        lambda: bag(ids[None, None]), ValueError,
        "ids must have 1 or 2 dimensions, got 3. For bags along the last of more dimensions, pass ids.reshape(-1,"
        " ids.shape[-1]); for one id, ids.reshape(1).",
    )  # fmt: skip
    check(
        lambda: bag(ids, torch.tensor([0, 9])), RuntimeError,
        "SegmentIdsFromOffsets: offsets must end with the number of ids, 2, got 9. Each offset is the position where a"
        " bag begins; without include_last_offset, the end is added.",
    )  # fmt: skip
    check(
        lambda: bag(ids.float(), starts), RuntimeError,
        "ids must be one of int32, int64; got torch.float32. Convert it to int64.",
    )  # fmt: skip
    check(
        lambda: bag(np.array([0, 1]), starts), TypeError,
        "ids must be a tensor or a SparseTensor, got numpy.ndarray. Convert it: torch.from_numpy(ids).",
    )  # fmt: skip


def test_weights_of_torch_lookups(torch: Any) -> None:
    ids, starts = torch.tensor([0, 1]), torch.tensor([0])
    check(
        lambda: rg.torch.functional.embedding_bag(ids, TABLE, starts), TypeError,
        "weight must be a tensor, got numpy.ndarray. Convert it: torch.from_numpy(weight).",
    )  # fmt: skip
    check(
        lambda: rg.torch.functional.embedding(ids, np.float32(1)), TypeError,
        "weight must be a tensor, got numpy.float32. Convert it: torch.tensor(weight).",
    )  # fmt: skip
    check(
        lambda: rg.torch.nn.EmbeddingBag.from_pretrained(TABLE), TypeError,
        "embeddings must be a tensor, got numpy.ndarray. Convert it: torch.from_numpy(embeddings).",
    )  # fmt: skip
    check(
        lambda: rg.torch.nn.EmbeddingBag(5, 3, mode="sum")(ids, starts, per_sample_weights=np.float32(1)), ValueError,
        "per_sample_weights must have shape (2,), one weight for each id, got a scalar. For one weight for all ids,"
        " multiply the result by it.",
    )  # fmt: skip


def test_lengths_of_weights(torch: Any) -> None:
    """A wrong length is that of the argument that the user passed, fused or not."""
    check(
        lambda: rg.torch.nn.EmbeddingBag(5, 3, mode="sum")(torch.tensor([[1]]), None, torch.ones(1, 1).double()),
        RuntimeError,
        "per_sample_weights must be torch.float32, the dtype of the table; got torch.float64. Convert them:"
        " per_sample_weights.to(torch.float32).",
    )
    for fused in (False, True):
        bag = rg.torch.nn.EmbeddingBag(5, 3, mode="sum", fused=fused)
        call = lambda bag=bag: bag(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(3))  # noqa: E731
        check(call, ValueError, "per_sample_weights must have shape (2,), got (3,)")


def test_ids_of_converted_modules(torch: Any) -> None:
    """The text names the table by its path in the model; the message stays TensorFlow's."""
    towers = torch.nn.ModuleDict({"bag": torch.nn.EmbeddingBag(5, 3), "row": torch.nn.Embedding(5, 3)})
    model = torch.nn.ModuleDict({"towers": towers})
    rg.torch.convert(model)
    for name, ids in (("bag", [[3, 9]]), ("row", [3, 9])):
        with pytest.raises(rg.errors.InvalidArgumentError) as caught:
            towers[name](torch.tensor(ids))
        assert caught.value.message == "Bad: indices[1] == 9 out of range [0, 5)"
        assert str(caught.value).endswith(f"{caught.value.message}. The table is 'towers.{name}'.")
    alone = torch.nn.Embedding(5, 3)
    rg.torch.convert(alone)
    assert text_of(lambda: alone(torch.tensor([9])), IndexError).endswith("out of range [0, 5)")


def test_optimizers(torch: Any) -> None:
    bag, optim = rg.torch.nn.EmbeddingBag(5, 3), rg.torch.optim
    check(
        lambda: optim.SGD(bag, lr=0.1), TypeError,
        "params must be parameters, got the module EmbeddingBag. Pass its parameters().",
    )  # fmt: skip
    check(
        lambda: optim.Adagrad(bag.parameters(), weight_decy=0.1), TypeError,
        "Adagrad has no option 'weight_decy'. Did you mean 'weight_decay'?",
    )  # fmt: skip
    text = text_of(lambda: optim.Adagrad(bag.parameters(), learning_rate=0.1), TypeError)
    assert text.startswith("Adagrad has no option 'learning_rate'. Options: lr, ")
    check(
        lambda: rg.torch.Adagard, AttributeError,
        "module 'rowgrad.torch' has no attribute 'Adagard'. Did you mean 'optim.Adagrad'?",
    )  # fmt: skip


def test_options_of_modules(torch: Any) -> None:
    check(
        lambda: rg.torch.nn.EmbeddingBag(5, 3, grad="row"), ValueError,
        "grad must be one of 'dense', 'rows'; got 'row'. Did you mean 'rows'?",
    )  # fmt: skip
    check(
        lambda: rg.torch.nn.Embeddings([rg.torch.nn.Table("a", 5, 3)], output="stack"), ValueError,
        "output must be one of 'features', 'stacked'; got 'stack'. Did you mean 'stacked'?",
    )  # fmt: skip


def test_tensors_on_two_devices(torch: Any) -> None:
    table, ids, starts = torch.ones(5, 3), torch.tensor([0, 1], device="meta"), torch.tensor([0])
    move = "Move one of them with .to(device)."
    check(
        lambda: rg.raw_ops.SparseSegmentMean(table, ids, ids), ValueError,
        f"SparseSegmentMean: indices is on meta, but data is on cpu. {move}",
    )  # fmt: skip
    check(
        lambda: rg.torch.functional.embedding_bag(ids, table, starts), ValueError,
        f"input is on meta, but weight is on cpu. {move}",
    )  # fmt: skip
    weights = torch.ones(2, device="meta")
    check(
        lambda: rg.torch.functional.embedding_bag(torch.tensor([0, 1]), table, starts, mode="sum",
                                                  per_sample_weights=weights), ValueError,
        f"per_sample_weights is on meta, but weight is on cpu. {move}",
    )  # fmt: skip


def test_tables_and_features(torch: Any) -> None:
    nn = rg.torch.nn
    check(
        lambda: nn.Embeddings([("user", 10, 4)]), TypeError,
        "tables must contain rowgrad.torch.nn.Table, got tuple. Write Table('user', 10, 4).",
    )  # fmt: skip
    check(
        lambda: nn.Embeddings({"user": (10, 4)}), TypeError,
        "tables must contain rowgrad.torch.nn.Table, got str. Write Table(name, num_embeddings, embedding_dim).",
    )  # fmt: skip
    check(
        lambda: nn.Embeddings(nn.Table("user", 10, 4)), TypeError,
        "tables must be a list of rowgrad.torch.nn.Table, got one Table. Write [table].",
    )  # fmt: skip
    embeddings = nn.Embeddings([nn.Table("user", 10, 4)])
    check(lambda: embeddings.weight("usr"), KeyError, "\"no table named 'usr'. Did you mean 'user'?\"")
    check(
        lambda: embeddings({"usr": torch.tensor([[1]])}), ValueError,
        "ids: got no 'user' and unknown 'usr', expected features 'user'. Did you mean 'user'?",
    )  # fmt: skip


# -- JAX --------------------------------------------------------------------------------------------------------------


def test_arrays_of_torch_and_jax(torch: Any) -> None:
    jnp = pytest.importorskip("jax.numpy")
    table, ids = jnp.asarray(TABLE), torch.tensor([0, 1])
    convert = "Convert one of them with torch.from_dlpack(array) or jax.numpy.from_dlpack(tensor)."
    check(
        lambda: rg.raw_ops.SparseSegmentMean(table, ids, np.array([0, 0])), ValueError,
        f"SparseSegmentMean: indices is an array of torch, but data is one of jax. {convert}",
    )  # fmt: skip
    check(
        lambda: rg.torch.functional.embedding_bag(jnp.array([0]), torch.ones(5, 3), ids[:1]), TypeError,
        "ids must be a tensor or a SparseTensor, got ArrayImpl, an array of JAX. Convert it: torch.from_dlpack(ids).",
    )  # fmt: skip


@pytest.mark.parametrize("ids", [[0, 2], [[0, 1], [2, 2]], 2, np.zeros((2, 0), np.int32)])
def test_rows_of_a_jax_table(ids: Any) -> None:
    """`table[ids]` returns the bits of `array[ids]`, negative zeros and NaN too; under `jit` as well."""
    jax = pytest.importorskip("jax")
    array = jax.numpy.array([[1.0, -0.0], [np.nan, 2.0], [3.0, 4.0]])
    expected = np.asarray(array[jax.numpy.asarray(ids)])
    for look_up in (lambda table, ids: table[ids], jax.jit(lambda table, ids: table[ids])):
        found = np.asarray(look_up(rg.jax.Table(array), jax.numpy.asarray(ids)))
        assert (found.shape, found.tobytes()) == (expected.shape, expected.tobytes())


def test_gradient_of_rows_of_a_jax_table() -> None:
    jax = pytest.importorskip("jax")
    ids, scale = jax.numpy.array([[0, 2], [2, 0]]), jax.numpy.array([1.0, 2.0])
    table = rg.jax.Table(jax.numpy.ones((5, 2)))
    value, gradient = rg.jax.value_and_rows(lambda table: (table[ids] * scale).sum())(table)
    expected = jax.grad(lambda array: (array[ids] * scale).sum())(table.array)
    assert float(value) == 12.0
    assert np.array_equal(rg.jax.rows.to_dense(gradient.rows), expected)
    for bad in ([5], [-1]):
        text = f"ids[0] = {bad[0]} is not in [0, 5), the rows of the table"
        check(lambda bad=bad: table[bad], rg.errors.InvalidArgumentError, text)
    check(
        lambda: table[0:2], ValueError,
        "table[ids] takes an array or a list of row numbers; got a slice. For a range of rows pass jnp.arange; for "
        "columns index the result, as in table[ids][..., 0].",
    )  # fmt: skip
    with pytest.raises(TypeError, match="not iterable"):
        iter(table)


def test_ids_of_a_compiled_jax_lookup() -> None:
    """A compiled `table[ids]` raises what it raises outside of `jit`, also from a scan and with gradients."""
    jax = pytest.importorskip("jax")
    table = rg.jax.Table(jax.numpy.ones((5, 2)))
    value_and_rows = rg.jax.value_and_rows(lambda table, ids: (table[ids] ** 2).sum())
    calls = [
        lambda table, ids: table[ids],
        jax.value_and_grad(lambda table, ids: (table[ids] ** 2).sum()),
        value_and_rows,
        lambda table, ids: jax.lax.scan(lambda _, row: (0, table[row]), 0, ids[None]),
    ]
    places = {(7,): "0", (1, -1): "1", ((0, 1), (5, 0)): "1, 0"}
    for call in calls:
        for ids, place in places.items():
            array = jax.numpy.array(ids)
            bad = next(i for i in np.ravel(ids) if i not in range(5))
            with pytest.raises(jax.errors.JaxRuntimeError) as caught:
                jax.block_until_ready(jax.jit(call)(table, array))
            text = f"InvalidArgumentError: table[ids]: ids[{place}] = {bad} is not in [0, 5), the rows of the table"
            assert str(caught.value).endswith(text)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"table\[ids\]: ids\[\(\)\] = 9"):
        jax.jit(calls[0])(table, 9).block_until_ready()


def test_ids_of_a_compiled_batch() -> None:
    """`vmap` makes one call of all items, whose positions are not those of one item: the error is that of the op."""
    jax = pytest.importorskip("jax")
    table = rg.jax.Table(jax.numpy.ones((5, 2)))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"SparseSegmentSum.*: Bad: indices\[1\] == 7 out of range"):
        jax.jit(jax.vmap(lambda ids: table[ids]))(jax.numpy.array([[1], [7]])).block_until_ready()


def test_ids_of_a_call_reported_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA device reports the same call by its text."""
    pytest.importorskip("jax")
    cuda_call = importlib.import_module("rowgrad.jax.cuda_call")
    fault = importlib.import_module("rowgrad._catalog.enums").Fault.index_not_in_data
    for text, expected in {
        "SparseSegmentSumWithNumSegments [2,2]": "table[ids]: ids[1, 0] = 7 is not in [0, 5), the rows of the table",
        "SparseSegmentSumWithNumSegments": "SparseSegmentSumWithNumSegments: Bad: indices[2] == 7 out of range [0, 5)",
    }.items():
        monkeypatch.setattr(cuda_call, "xla_cuda_reported", lambda text=text: [(text, "…", int(fault), 2, 7, 5)])
        check(cuda_call.raise_reported, rg.errors.InvalidArgumentError, f"{expected} ({cuda_call.EARLIER})")


def test_optax_optimizers_on_row_gradients() -> None:
    """JAX raises its own error for two trees; it contains the repr of the class, which gives advice."""
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    table = rg.jax.Table(jax.numpy.ones((5, 2)))
    gradient = rg.jax.value_and_rows(lambda table: table[jax.numpy.array([1])].sum())(table)[1]
    for name in ("adam", "adagrad", "rmsprop"):
        optimizer = getattr(optax, name)(0.1)
        text = text_of(lambda o=optimizer: o.update(gradient, o.init(table), table), ValueError)
        assert "Train tables with an optimizer of rowgrad.jax.optim, or make the gradient dense with" in text


def test_names_of_the_jax_module() -> None:
    pytest.importorskip("jax")
    text = text_of(lambda: rg.jax.optim.adagrad(learning_rate=0.1), TypeError)
    assert text.startswith("adagrad has no option 'learning_rate'. Options: lr, eps, ")
    check(
        lambda: rg.jax.adagard, AttributeError,
        "module 'rowgrad.jax' has no attribute 'adagard'. Did you mean 'optim.adagrad'?",
    )  # fmt: skip


def test_optax_on_row_gradients() -> None:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    table = rg.jax.Table(jax.numpy.ones((5, 2)))
    gradient = rg.jax.value_and_rows(lambda table: table[jax.numpy.array([1])].sum())(table)[1]
    clip = optax.clip_by_global_norm(1.0)
    check(
        lambda: clip.update(gradient, clip.init(table)), rg.errors.RowArithmeticError,
        "the attribute real is not defined for the row ids of a gradient, which array functions would change. Wrap"
        " optax transformations, as in rowgrad.jax.rows.on_rows(optax.clip_by_global_norm(1.0)), use"
        " rowgrad.jax.rows.global_norm on the whole gradient, or make it dense with rowgrad.jax.rows.to_dense.",
    )  # fmt: skip
    clipped = rg.jax.rows.on_rows(clip).update(gradient, clip.init(table))[0]
    assert np.allclose(rg.jax.rows.global_norm(clipped), 1.0)
