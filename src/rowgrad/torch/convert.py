"""`convert`: make the embeddings of a whole model compute with rowgrad."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
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
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    replaced, left = [], []
    for module, module_names in names.items():
        if not isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag):
            continue
        reason = _reason_to_leave(module)
        if reason:
            left.append(ConvertedModule(tuple(module_names), repr(module), reason))
            continue
        note = _convert_module(module, grad, fused)
        module._path = module_names[0]
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
    if isinstance(module, torch.nn.EmbeddingBag):
        if module.mode not in ("sum", "mean", "max"):
            return f"its mode is {module.mode!r}"
        if module.scale_grad_by_freq and weight.is_cpu and not _counts_are_correct():
            return "this torch divides its gradient by wrong counts, because of scale_grad_by_freq"
    return ""


@cache
def _counts_are_correct() -> bool:
    """Return whether torch divides the gradient of a bag's rows by their own counts (pytorch/pytorch#190063)."""
    with torch.enable_grad(), torch.inference_mode(False):
        table = torch.ones(3, 1, device="cpu", requires_grad=True)
        ids = torch.tensor([[0, 0, 2]], device="cpu")
        out = torch.nn.functional.embedding_bag(ids, table, scale_grad_by_freq=True, mode="sum")
        return bool((torch.autograd.grad(out, table)[0][2] == 1).all())


def _convert_module(module: Any, grad: str | None, fused: bool) -> str:
    """Change the class of a module and apply the options; return a note on those that do not fit it."""
    note = ""
    is_bag = isinstance(module, torch.nn.EmbeddingBag)
    if module.scale_grad_by_freq and (fused or grad == "rows"):
        fused, grad, note = False, None, "its gradient stays dense, because of scale_grad_by_freq"
    elif fused and is_bag and module.mode == "max":
        fused, note = False, "not fused, because of mode 'max'"
    module.__class__ = _CLASSES[type(module)]
    if is_bag:
        module.default_id = module.lookup_max_norm = None
    module.fused, module._rows = fused, False
    if fused or grad is not None:
        module.grad = grad or "rows"
    if fused:
        module.weight.__class__ = FusedWeight
    return note
