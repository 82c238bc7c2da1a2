"""`convert`: make the embeddings of a whole model compute with rowgrad."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ..errors import make_error
from . import functional
from .fused import FusedWeight
from .nn import Embedding, EmbeddingBag
from .tensors import DTYPE, NAME

_CLASSES: dict[type, type] = {torch.nn.Embedding: Embedding, torch.nn.EmbeddingBag: EmbeddingBag}
_FLOATS = tuple(DTYPE[name] for name in ("float16", "bfloat16", "float32", "float64"))
_DEVICES = ("cpu", "cuda", "meta")


@dataclass(frozen=True)
class ConvertedModule:
    """A module that `convert` looked at.

    Args:
        names: Its names in the model, as `named_modules` has them; "" is the model itself.
        text: The repr of the module.
        note: Why the module was left, or which option was not applied to it; "" if there is nothing to say.
    """

    names: tuple[str, ...]
    text: str
    note: str = ""

    def __str__(self) -> str:
        where = ", ".join(name or "(the model itself)" for name in self.names)
        return f"{where}: {self.text}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True)
class ConversionReport:
    """What `convert` replaced, and what it left and why; `str` lists both.

    Args:
        replaced: The modules that compute with rowgrad now.
        left: The embedding modules that are as they were.
    """

    replaced: tuple[ConvertedModule, ...]
    left: tuple[ConvertedModule, ...]

    def __str__(self) -> str:
        return "\n".join((*_section("replaced", self.replaced), *_section("left", self.left)))


def _section(title: str, modules: tuple[ConvertedModule, ...]) -> Iterator[str]:
    if not modules:
        yield f"{title}: none"
        return
    yield f"{title}:"
    for module in modules:
        yield f"  {module}"


def convert(model: torch.nn.Module, *, grad: str | None = None, fused: bool = False) -> ConversionReport:
    """Make every `torch.nn.Embedding` and `torch.nn.EmbeddingBag` of a model a module of `rowgrad.torch.nn`, in place.

    Modules and parameters stay the same objects, so references, optimizers, tied weights, hooks, `requires_grad`,
    training mode and state-dict keys are kept; only the class of the modules changes. A model that is an embedding
    itself is converted as well. Modules whose behaviour would change are left. Convert a model before
    DistributedDataParallel, FSDP or torch.compile wraps it.

    Args:
        model: The model.
        grad: The gradient of the tables: "rows", "dense", or None to keep each module's `sparse`.
        fused: Sum gradients by row inside the step of a rowgrad optimizer; see `rowgrad.torch.nn.EmbeddingBag`.

    Returns:
        What was replaced, and what was left and why.

    Raises:
        InvalidArgumentError: If options contradict each other. Nothing was converted then.

    >>> import torch, rowgrad.torch as rgt
    >>> model = torch.nn.Sequential(torch.nn.EmbeddingBag(100, 8, mode="sum"), torch.nn.Linear(8, 1))
    >>> print(rgt.convert(model))
    replaced:
      0: EmbeddingBag(100, 8, mode='sum')
    left: none
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if grad is not None:
        functional.check_options("sum", grad)
    if fused and grad == "dense":
        raise make_error("fused_unfit", value="grad='dense'")
    names: dict[torch.nn.Module, list[str]] = {}
    owners: dict[int, set[torch.nn.Module]] = {}  # the modules that have a parameter, by its id
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
        for parameter in module._parameters.values():
            owners.setdefault(id(parameter), set()).add(module)
    replaced, left = [], []
    for module, module_names in names.items():
        if not isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag):
            continue
        reason = _reason_to_leave(module)
        if reason:
            left.append(ConvertedModule(tuple(module_names), repr(module), reason))
            continue
        is_shared = len(owners[id(module.weight)]) > 1
        note = _convert_module(module, grad, fused, is_shared)
        replaced.append(ConvertedModule(tuple(module_names), repr(module), note))
    return ConversionReport(tuple(replaced), tuple(left))


def _reason_to_leave(module: Any) -> str:
    """Return why a module cannot be converted without a change of behaviour; "" if it can."""
    if isinstance(module, Embedding | EmbeddingBag):
        return "it is a rowgrad module"
    if torch.nn.utils.parametrize.is_parametrized(module):
        return "its weight is parametrized"
    if type(module) not in _CLASSES:
        base = "Embedding" if isinstance(module, torch.nn.Embedding) else "EmbeddingBag"
        return f"{type(module).__name__} is a subclass of torch.nn.{base}"
    if "forward" in vars(module):
        return "its forward method was replaced"
    if module._compiled_call_impl is not None:
        return "it was compiled"
    weight = module._parameters.get("weight")
    if weight is None:
        return "its weight is not a parameter"
    return _unsupported_table(weight, module)


def _unsupported_table(weight: torch.nn.Parameter, module: Any) -> str:
    if is_lazy(weight) or type(weight) is not torch.nn.Parameter:
        return f"its weight is a {type(weight).__name__}"
    if weight.device.type not in _DEVICES:
        return f"its weight is on {weight.device}"
    if weight.layout != torch.strided or weight.ndim != 2:
        return f"its weight has layout {weight.layout} and {weight.ndim} dimensions"
    is_constant = isinstance(module, torch.nn.Embedding) and not weight.requires_grad and weight.dtype in NAME
    if weight.dtype not in _FLOATS and not is_constant:
        return f"its weight has dtype {weight.dtype}"
    if isinstance(module, torch.nn.EmbeddingBag) and module.mode not in ("sum", "mean", "max"):
        return f"its mode is {module.mode!r}"
    return ""


def _convert_module(module: Any, grad: str | None, fused: bool, is_shared: bool) -> str:
    """Change the class of a module and apply the options; return a note on those that do not fit it."""
    notes = []
    is_bag = isinstance(module, torch.nn.EmbeddingBag)
    unfit = ""
    if module.scale_grad_by_freq:
        unfit = "scale_grad_by_freq needs dense gradients"
    elif fused and is_bag and module.mode == "max":
        unfit = "mode 'max' cannot be fused"
    elif fused and is_shared:
        unfit = "other modules share its weight"
    if fused and unfit:
        notes.append(f"not fused: {unfit}")
    rows = grad == "rows" or (fused and not unfit)
    if rows and module.scale_grad_by_freq:
        rows = False
        notes.append("gradient not changed: scale_grad_by_freq needs dense gradients")
    module.__class__ = _CLASSES[type(module)]
    if is_bag:
        module.default_id = module.lookup_max_norm = None
    module.fused, module._rows = fused and not unfit, False
    if grad == "dense":
        module.grad = "dense"
    elif rows and not module.sparse:
        module.grad = "rows"
    if module.fused and isinstance(module.weight, torch.nn.Parameter):
        module.weight.__class__ = FusedWeight
    return "; ".join(notes)
