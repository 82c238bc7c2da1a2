"""TensorFlow's sparse-embedding operators and their gradients, without TensorFlow."""

from . import compat as compat
from . import dense_ops as dense_ops
from . import errors as errors
from . import raw_ops as raw_ops
from . import sparse as sparse
from .compat import v1 as _v1  # noqa: F401  so that rowgrad.compat.v1 is there without another import
from .derivatives import densify as densify
from .derivatives import vjp as vjp
from .embedding import embedding_lookup_sparse as embedding_lookup_sparse
from .embedding import safe_embedding_lookup_sparse as safe_embedding_lookup_sparse
from .grad_buffer import GradBuffer as GradBuffer
from .native import num_threads as num_threads
from .native import set_num_threads as set_num_threads
from .partitioning import Partitioned as Partitioned
from .partitioning import global_ids as global_ids
from .partitioning import partition as partition
from .partitioning import stitch as stitch
from .plan import Plan as Plan
from .resharding import reshard as reshard
from .rows import IndexedRows as IndexedRows
from .sparse_tensor import SparseTensor as SparseTensor
from .spec import catalog as catalog

__version__ = "0.1.0"
