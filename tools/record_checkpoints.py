"""Write tests/golden/checkpoints with TensorFlow: small checkpoints of every kind, and the values in them.

    python tools/record_checkpoints.py [folder]

TensorFlow is needed only here. `expected.npz` stores each tensor as `<checkpoint>:<name>`; bfloat16 as its 16 bits,
strings with a fixed width.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
FOLDER = Path(__file__).parents[1] / "tests/golden/checkpoints"
Values = dict[str, np.ndarray[Any, Any]]
WORDS = [[b"", b"a"], [b"caf\xc3\xa9", b"\x00\xff"], [b"x" * 200, b"row"]]


def numbers(rows: int, columns: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return (np.arange(rows * columns).reshape(rows, columns) / 8 - 3).astype(dtype)


def parts_of(value: np.ndarray[Any, Any]) -> Any:
    """Return an initializer of partitioned variables: TensorFlow passes each part its offset."""

    def initialize(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        place = tuple(slice(o, o + n) for o, n in zip(partition_info.var_offset, shape, strict=True))
        return tf.constant(value[place], dtype)

    return initialize


def partitioned(folder: Path) -> Values:
    """TF1's Saver and a PartitionedVariable: one name, saved in slices; and a variable split by columns."""
    rows, columns = numbers(10, 3), numbers(4, 7)
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value, partitions in (
            ("embedding", rows, v1.fixed_size_partitioner(4)),
            ("wide", columns, v1.fixed_size_partitioner(3, axis=1)),
        ):
            v1.get_variable(name, value.shape, initializer=parts_of(value), partitioner=partitions)
        v1.get_variable("global_step", initializer=np.int64(7))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / "model.ckpt"), global_step=7, write_meta_graph=False)
    return {"embedding": rows, "wide": columns, "global_step": np.array(7)}


def shards(folder: Path) -> Values:
    """TF1's Saver and separately named shards: rows assigned by "mod" and by "div"."""
    table = numbers(11, 2, np.float64)
    values: Values = {f"mod/part_{k}": table[k::3] for k in range(3)}
    values |= {f"div/shard_{k}/weights": part for k, part in enumerate(np.array_split(table, 3))}
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value in values.items():
            v1.get_variable(name, initializer=value)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / "model.ckpt"), write_meta_graph=False)
    return values


def estimator(folder: Path) -> Values:
    """Names and slots as a wide-and-deep Estimator saves them, after three steps; `next_step.npz` is the fourth step.

    FTRL trains the linear part and Adagrad the deep part, both in three partitions; Adam trains a table of its own.
    """
    deep = "dnn/input_from_feature_columns/input_layer/item_embedding/embedding_weights"
    wide, own = "linear/linear_model/item/weights", "encoder/user_embedding"
    ids = np.array([1, 5, 1, 9])
    with tf.Graph().as_default(), v1.Session() as session:
        thirds = v1.fixed_size_partitioner(3)
        tables = {
            deep: v1.get_variable(deep, (12, 4), initializer=parts_of(numbers(12, 4)), partitioner=thirds),
            wide: v1.get_variable(wide, (12, 1), initializer=parts_of(numbers(12, 1)), partitioner=thirds),
            own: v1.get_variable(own, initializer=numbers(12, 4)),
        }
        optimizers = {
            deep: v1.train.AdagradOptimizer(0.05),
            wide: v1.train.FtrlOptimizer(0.05, l1_regularization_strength=0.01),
            own: v1.train.AdamOptimizer(0.01),
        }
        step = v1.train.get_or_create_global_step()
        updates = [v1.assign_add(step, 1)]
        for name, table in tables.items():
            parts = [table] if name == own else list(table)
            loss = tf.reduce_sum(v1.nn.embedding_lookup(parts, ids, partition_strategy="div"))
            updates.append(optimizers[name].minimize(loss, var_list=parts))
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(updates)
        saver = v1.train.Saver()
        prefix = saver.save(session, str(folder / "model.ckpt"), global_step=3, write_meta_graph=False)
        reader = tf.train.load_checkpoint(prefix)
        values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        session.run(updates)
        after = session.run({name: tf.convert_to_tensor(table) for name, table in tables.items()})
        np.savez(folder / "next_step.npz", ids=ids, **{name.replace("/", "."): table for name, table in after.items()})
    return values


def objects(folder: Path) -> Values:
    """TF2's object-based checkpoint, written by a manager, so that there is a state file."""
    table, bias = numbers(5, 4), np.arange(4, dtype=np.float32)
    layer = tf.Module()
    layer.embedding, layer.bias = tf.Variable(table), tf.Variable(bias)
    saved = tf.train.Checkpoint(model=layer, step=tf.Variable(3, dtype=tf.int64))
    tf.train.CheckpointManager(saved, str(folder), max_to_keep=1).save()
    end = "/.ATTRIBUTES/VARIABLE_VALUE"
    return {f"model/embedding{end}": table, f"model/bias{end}": bias, f"step{end}": np.array(3)}


def keras(folder: Path) -> Values:
    """A tf.Module with two tables and Keras 3's Adagrad, after three steps; `next_step.npz` is the fourth step.

    Slots follow the list passed to `apply_gradients`, not the order of the attributes by name, and the tables have the
    same shape. The lookup makes ids unique, because Keras would square the gradient of each repetition.
    """
    model, ids = tf.Module(), np.array([1, 5, 1, 9])
    bags = tf.sparse.from_dense(ids[:, None])
    model.users, model.items = tf.Variable(numbers(12, 4)), tf.Variable(1 - numbers(12, 4))
    model.kernel = tf.Variable(numbers(4, 1) / 4)
    optimizer = tf.keras.optimizers.Adagrad(0.1)  # initial_accumulator_value=0.1, epsilon=1e-7

    def step() -> None:
        variables = [model.users, model.items, model.kernel]
        with tf.GradientTape() as tape:
            users, items = (tf.nn.safe_embedding_lookup_sparse(table, bags) for table in variables[:2])
            rows = users - 2 * items
            loss = tf.reduce_sum(tf.square(rows @ model.kernel))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    for _ in range(3):
        step()
    prefix = tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(folder / "model"))
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    values = {name: reader.get_tensor(name) for name in shapes if not name.startswith("_")}
    step()
    after = {name: getattr(model, name).numpy() for name in ("users", "items", "kernel")}
    np.savez(folder / "next_step.npz", ids=ids, **after)
    return values


def dtypes(folder: Path) -> Values:
    """Every dtype, a scalar, empty tensors; the names are the dtypes."""
    plain = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    values: Values = {name: (np.arange(6) * 19).reshape(2, 3).astype(name) for name in plain}
    values |= {
        "complex64": numbers(2, 2).astype(np.complex64) * (1 + 2j),
        "complex128": numbers(2, 2, np.float64) * (1 - 2j),
    }
    values |= {"bool": np.array([True, False, True]), "scalar": np.array(2.5), "empty": np.zeros((0, 4), np.float32)}
    values["bfloat16"] = tf.cast(numbers(3, 2), tf.bfloat16).numpy()
    values |= {"string": np.array(WORDS, object), "empty_string": np.zeros(0, object)}
    values["string_scalar"] = np.array(b"one", object)
    texts = {name: tf.constant(value, tf.string) for name, value in values.items() if value.dtype == object}
    save(folder / "all", {name: tf.constant(value) for name, value in values.items() if name not in texts} | texts)
    return values


def refused(folder: Path) -> Values:
    """A quantized tensor next to one that can be read."""
    quantized = tf.quantization.quantize([0.0, 1.0], 0.0, 1.0, tf.quint8).output
    save(folder / "all", {"quantized": quantized, "plain": tf.constant([1.0])})
    return {"plain": np.array([1.0], np.float32)}


def several_files(folder: Path) -> Values:
    """Three bundles merged into one index, as sharded savers do: three data files, slices across them."""
    table, small = numbers(9, 2), {f"b{k}": np.full(k + 1, k, np.int32) for k in range(3)}
    parts = []
    for k in range(3):
        part = str(folder / f"part{k}")
        tf.raw_ops.SaveV2(
            prefix=part,
            tensor_names=["table", f"b{k}"],
            shape_and_slices=[f"9 2 {3 * k},3:0,2" if k % 2 else f"9 2 {3 * k},3:-", ""],
            tensors=[tf.constant(table[3 * k : 3 * k + 3]), tf.constant(small[f"b{k}"])],
        )
        parts.append(part)
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(folder / "merged"))
    return {"table": table, **small}


def far_slices(folder: Path) -> Values:
    """Slices with growing offsets of a table without columns: keys of all lengths, and no data."""
    starts = [0, 63, 64, 8191, 8192, 2**20, 2**27, 2**34, 2**41, 2**48, 2**55, 2**57]
    sizes = [b - a for a, b in zip(starts, [*starts[1:], 2**57 + 5], strict=True)]
    tf.raw_ops.SaveV2(
        prefix=str(folder / "all"),
        tensor_names=["far"] * len(starts),
        shape_and_slices=[f"{2**57 + 5} 0 {a},{n}:-" for a, n in zip(starts, sizes, strict=True)],
        tensors=[tf.zeros([n, 0]) for n in sizes],
    )
    return {}


def many_names(folder: Path) -> Values:
    """Enough names for shared prefixes with restarts between them. Tensor k holds k, so no values are stored."""
    save(folder / "all", {f"tower/layer_{k:03}/kernel": tf.constant([k], tf.int16) for k in range(60)})
    return {}


def save(prefix: Path, tensors: dict[str, Any]) -> None:
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )


def storable(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if value.dtype == object:
        return value.astype("S")  # a string that ends with a zero byte would lose it: there is none
    return value.view(np.uint16) if value.dtype.name == "bfloat16" else value


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    shutil.rmtree(root, ignore_errors=True)
    expected: Values = {}
    kinds = (partitioned, shards, estimator, objects, keras, dtypes, refused, several_files, far_slices, many_names)
    for record in kinds:
        folder = root / record.__name__
        folder.mkdir(parents=True)
        expected |= {f"{record.__name__}:{name}": storable(value) for name, value in record(folder).items()}
    for state in root.rglob("checkpoint"):  # remove paths of the machine that recorded
        state.write_text(state.read_text().replace(f"{state.parent.resolve()}/", "").replace(f"{state.parent}/", ""))
    np.savez_compressed(root / "expected.npz", **expected)


if __name__ == "__main__":
    main()
