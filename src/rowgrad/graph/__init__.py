"""Pages of blocks, and graphs that run them: `Scope`, `ops` and `ClientSession`, like TensorFlow's C++ client.

>>> from rowgrad.graph import ClientSession, Const, Scope, ops
>>> root = Scope.new_root_scope()
>>> grad = Const(root, [[1.0, 2.0], [3.0, 4.0]])
>>> g = ops.SparseSegmentMeanGrad(root.with_op_name("g"), grad, [0, 2, 2], [0, 0, 1], 3)
>>> g.output
<g.output float32[3,2]>
>>> ClientSession(root).run(g.output).tolist()
[[0.5, 1.0], [0.0, 0.0], [3.5, 5.0]]
"""

from . import ops
from .engine import engine_names, open_engine
from .io import dumps, load, loads, save
from .io.state_file import save_arrays
from .nodes import Output, Placed, Scope
from .page import Block, End, Note, Page, PageError, Project, Trend
from .page_builder import build, check, page_of
from .run_loop import Loop
from .session import ClientSession

Const = ops.Const
AddSymbolicGradients = ops.AddSymbolicGradients

__all__ = [
    "AddSymbolicGradients",
    "Block",
    "ClientSession",
    "Const",
    "End",
    "Loop",
    "Note",
    "Output",
    "Page",
    "PageError",
    "Placed",
    "Project",
    "Scope",
    "Trend",
    "build",
    "check",
    "dumps",
    "engine_names",
    "load",
    "loads",
    "open_engine",
    "ops",
    "page_of",
    "save",
    "save_arrays",
]
