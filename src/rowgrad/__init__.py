"""TensorFlow's sparse-embedding operators and their gradients, without TensorFlow."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

from . import compat as compat
from . import dense_ops as dense_ops
from . import errors as errors
from . import raw_ops as raw_ops
from . import sparse as sparse
from ._catalog.rows import IndexedRows as IndexedRows
from ._catalog.spec import CATALOG as _CATALOG
from ._catalog.spec import catalog as catalog
from ._hints import no_attribute as _no_attribute
from ._runtime.memory import GradBuffer as GradBuffer
from ._runtime.numpy_runner import num_threads as num_threads
from ._runtime.numpy_runner import set_num_threads as set_num_threads
from .autodiff import densify as densify
from .autodiff import vjp as vjp
from .compat import v1 as _v1  # noqa: F401  makes rowgrad.compat.v1 available without another import
from .lookup import embedding_lookup_sparse as embedding_lookup_sparse
from .lookup import safe_embedding_lookup_sparse as safe_embedding_lookup_sparse
from .plan import Plan as Plan
from .sharding import reshard as reshard
from .sharding.partition import Partitioned as Partitioned
from .sharding.partition import global_ids as global_ids
from .sharding.partition import partition as partition
from .sharding.partition import stitch as stitch
from .sparse import SparseTensor as SparseTensor


def show(what: _Any, *args: _Any, height: int | None = None, **kwargs: _Any) -> _Any:
    """Draw a graph, a page, or the call of an op in a notebook.

    A call is run, and its trace is open: which rows each row of a result was added up from, and with which factors.

    Args:
        what: A Scope, a Page, the path of a page, or an op: a function of `raw_ops` or `dense_ops`, or its name.
        *args: The arguments of the op.
        height: Height in pixels.
        **kwargs: The arguments and attributes of the op.

    Returns:
        A `rowgrad.studio.Widget`, which the notebook shows if it is the value of the cell.

    Raises:
        ImportError: The extra `notebook` is not installed.
        OpError: The call is invalid.
        RuntimeError: This is not a notebook.
        TypeError: `what` cannot be shown, or the op does not take these arguments.

    >>> import rowgrad as rg
    >>> grad = [[1.0, 2.0], [6.0, 8.0]]
    >>> rg.show(rg.raw_ops.SparseSegmentMeanGrad, grad, [0, 2, 2], [0, 0, 1], 4)  # doctest: +SKIP
    """
    from .studio.show import show as _show

    return _show(what, *args, height=height, **kwargs)


__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import checkpoint as checkpoint
    from . import graph as graph
    from . import jax as jax
    from . import optim as optim
    from . import studio as studio
    from . import torch as torch

_LAZY = ("checkpoint", "graph", "jax", "optim", "studio", "torch")  # imported when they are first used


def __getattr__(name: str) -> _Any:
    if name not in _LAZY:
        inner = (f"{'dense' if op.layer == 'dense' else 'raw'}_ops.{op.name}" for op in _CATALOG.values())
        raise _no_attribute(__name__, name, __dir__(), inner=inner)
    try:
        return _import_module(f".{name}", __name__)
    except ImportError as error:  # hasattr and help() expect this class for a module that cannot be imported
        raise AttributeError(f"{error}") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY} - {"TYPE_CHECKING"})
