"""Blocks of the how-to guides that need a file, another process or minutes. tests/test_docs.py runs all others."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from rowgrad.checkpoint import Checkpoint
from rowgrad.errors import CheckpointError
from test_docs import BLOCK, ROOT, WRITTEN, name_of, python_blocks, run_block

GUIDES = ROOT / "docs/how-to"


def shown_blocks(page: Path) -> list[str]:
    """Return the blocks that the site highlights as Python and that test_docs.py does not run."""
    return [m[2] for m in BLOCK.finditer(page.read_text(encoding="utf-8")) if m[1] == "py"]


# What runs the blocks that test_docs.py does not run, in the order of each page, or why nothing does.
TENSORFLOW = "TensorFlow is not installed; what these lines return is recorded in tests/golden"
ECOSYSTEM = "needs TorchRec or FBGEMM: tests/ecosystem/test_torchrec.py makes these calls"
SHOWN = {
    "docs/how-to/checkpoints.md": ["test_blocks_about_checkpoints"] * 2,
    "docs/how-to/debug_gradient.md": [TENSORFLOW],
    "docs/how-to/from_tensorflow.md": ["test_keras_file"],
    "docs/how-to/move_from_fbgemm.md": [ECOSYSTEM] * 2,
    "docs/how-to/serve.md": ["test_the_compiled_package_scores_as_the_model"],
    "docs/how-to/shard_torch.md": ["needs several processes: examples/sharded_torch.py begins so"],
    "docs/how-to/train_pytorch.md": [
        "a part of examples/lightning_recommender.py: tests/ecosystem/test_lightning_example.py",
        ECOSYSTEM,
    ],
    "docs/reference/cuda.md": ["tests/gpu/test_gpu_docs.py"] * 2,
    "docs/reference/studio.md": ["needs a notebook: tests/studio/test_show.py makes the same call"],
    "examples/from_tensorflow.md": [TENSORFLOW] * 6,
}


def test_every_block_that_is_shown_only_has_a_reason() -> None:
    found = {name_of(page): shown_blocks(page) for page in WRITTEN}
    assert {page: len(blocks) for page, blocks in found.items() if blocks} == {p: len(r) for p, r in SHOWN.items()}
    for page, blocks in found.items():
        for block in blocks:
            compile(block, page, "exec")
    reasons = {word.strip(":,") for notes in SHOWN.values() for note in notes for word in note.split()}
    assert {word for word in reasons if word.startswith("test_")} <= globals().keys()
    assert all((ROOT / word).exists() for word in reasons if word.startswith(("tests/", "examples/")))
    unmarked = [name_of(p) for p in WRITTEN for m in BLOCK.finditer(p.read_text(encoding="utf-8")) if not m[1]]
    assert not unmarked, "blocks without a language"


def test_blocks_about_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "tests/golden/checkpoints")
    names: dict[str, Any] = {}
    for block in shown_blocks(GUIDES / "checkpoints.md"):
        exec(block, names)
    assert np.array_equal(names["some"], names["table"][1:3])
    assert names["whole"].shape == names["by_id"].shape
    assert not np.array_equal(names["whole"], names["by_id"])
    assert np.array_equal(names["dealt"], names["same"])
    assert np.array_equal(names["dealt"], names["runs"])


def names_of(page: Path) -> dict[str, Any]:
    """Run the blocks of a page; return the names that they define."""
    names: dict[str, Any] = {"__name__": "page"}
    for line, source in python_blocks(page):
        complaint = run_block(source, names, page.name, line)
        assert not complaint, complaint
    return names


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # raised inside torch
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_the_compiled_package_scores_as_the_model() -> None:
    names = names_of(GUIDES / "serve.md")
    (block,) = shown_blocks(GUIDES / "serve.md")
    exec(block, names)
    torch.testing.assert_close(names["scores"], names["expected"], rtol=1e-5, atol=1e-6)
    more = torch.arange(50), torch.arange(0, 50, 5)
    torch.testing.assert_close(names["served"](*more), names["model"](*more).detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(RuntimeError, match="1000"):
        names["served"](torch.tensor([1, 1000]), torch.tensor([0, 1]))


def test_the_numpy_scorer_does_not_import_torch() -> None:
    names = names_of(GUIDES / "serve.md")
    page = (GUIDES / "serve.md").read_text(encoding="utf-8")
    session = page.partition(">>> table = np.load")[2].partition("\n\n")[0]
    lines = [line[4:] for line in (">>> table = np.load" + session).splitlines()]
    program = "\n".join(
        [
            "import pathlib, sys, numpy as np, rowgrad as rg",
            f"folder = pathlib.Path({str(names['folder'])!r})",
            *lines,
            f"print(score(np.array({names['ids'].tolist()}), np.array({names['offsets'].tolist()})).ravel().tolist())",
            "assert not {'torch', 'jax'} & set(sys.modules)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [float(x) for x in done.stdout.strip("[]\n").split(",")]
    assert found == pytest.approx(names["expected"].ravel().tolist(), rel=1e-5, abs=1e-6)


# -- Keras files -------------------------------------------------------------------------------------------------------

TABLE, KERNEL = np.arange(28, dtype=np.float32).reshape(7, 4), np.ones((4, 1), np.float32)
MOMENTS = {2: TABLE / 8, 3: TABLE / 4, 4: KERNEL / 8, 5: KERNEL / 4}


def write_keras_3(path: Path) -> None:
    """Write the weights of an Embedding, a Dense layer and Adam in the layout of Keras 3.15."""
    with h5py.File(path, "w") as file:
        for kind, name, variables in (("embedding", "items", [TABLE]), ("dense", "out", [KERNEL])):
            group = file.create_group(f"layers/{kind}/vars")
            group.attrs["name"] = name
            for number, variable in enumerate(variables):
                group[str(number)] = variable
        optimizer = file.create_group("optimizer/vars")
        optimizer.attrs["name"] = "adam"
        optimizer["0"], optimizer["1"] = np.int64(3), np.float32(0.01)
        for number, moment in MOMENTS.items():
            optimizer[str(number)] = moment


def write_h5(path: Path, weights: str) -> None:
    """Write the file of Keras 2's and 3's `model.save("model.h5")`."""
    with h5py.File(path, "w") as file:
        file.create_group("model_weights/items").attrs["weight_names"] = [weights]
        file[f"model_weights/items/{weights}"] = TABLE


@pytest.fixture
def recipe() -> tuple[str, str]:
    """The function for Keras' files on the page, and the lines that call it."""
    (block,) = (b for b in shown_blocks(GUIDES / "from_tensorflow.md") if "h5py" in b)
    function, call, rest = block.partition("arrays = keras_arrays(")
    return function, call + rest


def test_keras_file(recipe: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_keras_3(tmp_path / "model.weights.h5")
    with zipfile.ZipFile("model.keras", "w") as archive:
        archive.writestr("metadata.json", "{}")
        archive.write("model.weights.h5")
    names: dict[str, Any] = {}
    exec("".join(recipe), names)
    assert np.array_equal(names["table"], TABLE)
    assert int(names["arrays"]["optimizer/vars/0"]) == 3
    for number, moment in MOMENTS.items():
        assert np.array_equal(names["arrays"][f"optimizer/vars/{number}"], moment)
    weights_only = names["keras_arrays"]("model.weights.h5")
    assert weights_only.keys() == names["arrays"].keys()
    with pytest.raises(CheckpointError, match=re.escape("model.keras: this is a Keras archive, not a checkpoint")):
        Checkpoint("model.keras")
    with pytest.raises(CheckpointError, match="this is an HDF5 file"):
        Checkpoint("model.weights.h5")


@pytest.mark.parametrize("weights", ["items/embeddings:0", "sequential/items/embeddings"])
def test_h5_file(recipe: tuple[str, str], tmp_path: Path, weights: str) -> None:
    write_h5(tmp_path / "model.h5", weights)
    names: dict[str, Any] = {}
    exec(recipe[0], names)
    (found,) = names["keras_arrays"](str(tmp_path / "model.h5")).items()
    assert found[0].endswith(("items/embeddings", "items/embeddings:0"))
    assert np.array_equal(found[1], TABLE)
