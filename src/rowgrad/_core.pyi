"""What the compiled extension offers; arguments are checked before they come here."""

from collections.abc import Callable, Sequence
from typing import Any

class Job:
    """One call of one kernel: made, it has measured; run, it has checked and computed."""

    def __init__(
        self,
        kernel: int,
        attrs: Sequence[int],
        arrays: tuple[Any, ...],
        codes: bytes,
        shapes: tuple[tuple[Any, ...], ...] | None = None,
    ) -> None:
        """`shapes`: what was checked of the arrays; one that has another shape by now is a BufferError."""
    @property
    def measured(self) -> tuple[tuple[str, int, int, int] | None, int, bool]:
        """Fault, rows and fills together."""
    @property
    def fault(self) -> tuple[str, int, int, int] | None: ...
    @property
    def rows(self) -> int: ...
    @property
    def fills(self) -> bool: ...
    def run(
        self, arrays: tuple[Any, ...], codes: bytes, zeros: bool, stale: tuple[Any, ...], stale_code: bytes
    ) -> tuple[str, int, int, int] | None: ...
    @property
    def wrote_all(self) -> bool: ...
    def written(self) -> Any: ...

def run_kernel(
    kernel: int,
    attrs: Sequence[int],
    arrays: tuple[Any, ...],
    codes: bytes,
    outputs: tuple[Any, ...],
    out_codes: bytes,
    zeros: bool,
) -> tuple[str, int, int, int] | None:
    """A whole call, where the outputs' sizes are known beforehand."""

def kernels() -> list[tuple[str, list[str]]]: ...
def update_kernels() -> list[tuple[str, list[str]]]:
    """Their numbers for a Job follow those of `kernels()`."""

def dtypes() -> list[str]: ...
def faults() -> list[str]: ...
def recycled(bytes: int) -> Any: ...
def zeroed(bytes: int) -> Any: ...
def gradient_algorithm(ids: int, rows: int, cols: int, bytes_per_sum: int) -> str: ...
def level() -> str: ...
def memory_limit() -> int: ...
def num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
def xla_handler() -> Any:
    """The handler of XLA's custom calls, as a capsule."""

def set_xla_checker(check: Callable[[list[int], list[list[int]], list[list[int]]], str]) -> None:
    """Set the function that checks XLA calls against the catalogue: script, argument and result shapes; "" is valid."""

def xla_step_handler() -> Any:
    """Return the handler of XLA's custom calls of optimizer steps as a capsule."""

def xla_cuda_step_handler() -> Any:
    """Return the handler of optimizer steps on CUDA devices as a capsule."""

def xla_cuda_handler() -> Any:
    """Return the handler of XLA's custom calls on CUDA devices as a capsule."""

def xla_cuda_open(load: Callable[[str, str, str], tuple[bytes, str, int]], functions: dict[str, int] | None) -> None:
    """Set what the handler needs, and forget its devices.

    `load(architecture, kernel, variant)` returns machine code, the name of its entry and the block size. `functions`:
    the addresses of a driver's functions; None: the installed driver, opened by the first call.
    """

def xla_cuda_synchronize() -> None:
    """Wait for all work on the devices that the handler has used."""

def xla_cuda_reported() -> list[tuple[str, str, int, int, int, int]]:
    """Return the reported faults as (op, arguments, code, position, value, bound), oldest first, and clear them."""

def set_xla_messages(message: Callable[[str, int, int, int, int, str, bool], str]) -> None:
    """Set the function that returns the error text of an XLA call: op, fault, position, value, bound, arguments."""

def set_torch_classes(
    table: Any, classes: Sequence[type], new_tensor: Callable[[tuple[int, ...], Any, bool], Any]
) -> None:
    """Set DLPack's table of C functions, the classes of tensors that kernels may read by it, and the allocator."""

class GradientRows:
    """The gradient of every feature's output, as addresses and strides; the tensors must be kept alive."""

class Lookup:
    """One lookup of many features, with a copy of its ids; the tables must be kept alive."""

    @property
    def bags(self) -> int: ...
    @property
    def weighted(self) -> bool: ...
    @property
    def width(self) -> int:
        """The number of columns if it is the same for all features, otherwise -1."""
    @property
    def widths(self) -> list[int]: ...
    def shape(self, table: int) -> tuple[int, int]: ...
    def count(self, feature: int) -> int: ...
    def copy_ids(self, feature: int, ids: Any, offsets: Any) -> None: ...
    def forward(self, out: Any) -> bool: ...
    def gradients(self, ys: Any) -> GradientRows | None: ...
    def sort(self, tables: Sequence[int]) -> list[int]: ...
    def dense_gradient(self, y: Any, order: int, rounding: int) -> Any | None:
        """Return the dense gradient of the only table; None if the kernel cannot read `y`."""
    def writes_whole(self, table: int) -> bool:
        """Whether the dense gradient of a table needs no tensor of zeros."""
    def gradient(
        self, table: int, gradients: GradientRows, order: int, rounding: int, out: Any, ids: Any | None
    ) -> bool: ...

class TableSet:
    """Tables (combiner and padding of each) that are looked up together, and the table of each feature."""

    def __init__(self, tables: Sequence[tuple[int, int]], features: Sequence[int]) -> None: ...
    def read_vector(self, tables: list[Any], ids: Any, offsets: Any, weights: Any | None) -> Lookup | None: ...
    def read_features(
        self, tables: list[Any], values: list[Any], weights: list[Any] | None, ends: bool | None
    ) -> Lookup | None: ...
    def look_up(
        self, table: Any, ids: Any, offsets: Any | None, weights: Any | None, ends: bool, keeps: bool
    ) -> Any | None:
        """Return the combined rows of the only feature, with the lookup if `keeps`."""

class TableSteps:
    """Steps of several tables of one dtype by one rule; `fit` or `add_rows` comes before `run` or `run_rows`."""

    def __init__(self, rule: int, slots: tuple[str, ...]) -> None: ...
    def add(self, params: list[Any], states: list[dict[str, Any]], numbers: list[tuple[Any, ...]]) -> bool: ...
    def fit(self, lookup: Lookup, gradients: GradientRows, tables: Sequence[int]) -> bool: ...
    def run(
        self, lookup: Lookup, gradients: GradientRows, tables: Sequence[int], order: int, rounding: int
    ) -> bool: ...
    def add_rows(self, ids: list[Any], rows: list[Any]) -> bool: ...
    def run_rows(self) -> bool: ...

# The CUDA launcher (cpp/cuda): addresses, a stream, and memory that the caller allocated. Matrices are (address, dtype,
# rows, columns), ids (address, whether they have 64 bits), reports (slot, alarm, check state).

class CudaLedger:
    """Host memory for the fault reports of a device."""

    def __init__(self, memory: int, slots: int, checks: int) -> None: ...
    @property
    def alarm(self) -> int: ...
    @property
    def is_raised(self) -> bool: ...
    @property
    def captured(self) -> int:
        """How many slots belong to captured calls."""
    def take(self, caller: Any, captured: bool) -> int:
        """Return the slot of a call; 0 if captured calls hold too many."""
    def checks_of(self, slot: int) -> int: ...
    def reported(self) -> list[tuple[int, Any, int, int, int, int]]:
        """Return the reports, oldest first, as (slot, caller, code, position, value, bound); clear them."""

class CudaDevice:
    """One device: compiled kernels and launches."""

    @property
    def processors(self) -> int: ...
    def launch(self, kernel: str, variant: str, x: int, y: int, shared: int, stream: int, packed: bytes, /) -> None: ...
    def zero(self, stream: int, memory: int, bytes: int, /) -> None: ...
    def zero_on_side_stream(self, stream: int, memory: int, bytes: int, /) -> None: ...
    def join(self, stream: int, /) -> None: ...
    def sum_segments(
        self,
        stream: int,
        data: tuple[int, int, int, int],
        ids: tuple[int, bool],
        segments: tuple[int, bool],
        size: int,
        bags: int,
        out: int,
        reduce: int,
        report: tuple[int, int, int],
        earlier: int,
        /,
    ) -> None: ...
    def sum_entries(
        self,
        stream: int,
        at: dict[str, int],
        size: int,
        grad: tuple[int, int, int, int],
        out: int,
        mode: int,
        order: int,
        unique: bool,
        /,
    ) -> None: ...
    def run_op(
        self,
        kernel: str,
        stream: int,
        report: tuple[int, int, int],
        constants: list[int],
        inputs: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]],
        outputs: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]],
        allocate: Callable[[int], int],
        /,
    ) -> tuple[int, int, int, int] | None:
        """Queue a kernel of `cuda_ops()`; return the fault that the host found.

        Arrays are (address, dtype, shape, ()), host inputs (0, 0, (), numbers).
        """

    def weigh(
        self,
        stream: int,
        at: dict[str, int],
        size: int,
        grad: tuple[int, int, int, int],
        segments: tuple[int, bool],
        weights: int,
        weight_dtype: int,
        reduce: int,
        allocate: Callable[[int], int],
        /,
    ) -> dict[str, int]:
        """Queue the weights and divisors of sorted entries; return the addresses of all their lists."""

def cuda_device(
    index: int,
    processors: int,
    load: Callable[[str, str], tuple[bytes, str, int]],
    functions: dict[str, int] | None,
) -> CudaDevice:
    """Open a device. `load` returns a kernel's code, entry and block size; `functions` replace the driver."""

def cuda_ops() -> list[str]:
    """Return the kernels of the catalogue whose calls `CudaDevice.run_op` puts together."""

def cuda_join_bytes(size: int, grad: tuple[int, int, int, int], out: int, order: int, /) -> tuple[int, int]:
    """Return the workspace of partial sums in bytes: those that start as zeros, and others."""

def cuda_padded(size: int, /) -> int: ...
def cuda_check_limits(size: int, rows: int, sources: int, /) -> None: ...

class CudaIdSort:
    """A sort by row."""

    def __init__(
        self,
        device: CudaDevice,
        size: int,
        rows: int,
        sources: int,
        counted: bool,
        scale_bytes: int,
        zeroed: int,
        workspace: int,
        /,
    ) -> None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def passes(self) -> int: ...
    @property
    def bits(self) -> int: ...
    def entries(self, memory: int, /) -> dict[str, int]: ...
    def run(
        self,
        device: CudaDevice,
        stream: int,
        memory: int,
        ids: tuple[int, bool],
        segments: tuple[int, bool],
        by_segment: bool,
        order: int,
        id_fault: int,
        segment_fault: int,
        reduce: int,
        report: tuple[int, int, int],
        rows: tuple[int, bool],
        starts: int,
        /,
    ) -> None: ...

class CudaGradient:
    """A gradient of sum, mean or sqrtn bags."""

    def __init__(
        self,
        device: CudaDevice,
        grad: tuple[int, int, int, int],
        out: int,
        size: int,
        num_rows: int,
        reduce: int,
        order: int,
        unique: bool,
        /,
    ) -> None: ...
    @property
    def bytes(self) -> int: ...
    def run(
        self,
        device: CudaDevice,
        stream: int,
        memory: int,
        ids: tuple[int, bool],
        segments: tuple[int, bool],
        rows: tuple[int, bool],
        report: tuple[int, int, int],
        /,
    ) -> int:
        """Queue it; return the address of the number of rows."""

class CudaUpdateFromRows:
    """A step with gradient rows of distinct ids."""

    def __init__(self, update: tuple[Any, ...], /) -> None: ...
    @property
    def bytes(self) -> int: ...
    def run(
        self,
        device: CudaDevice,
        stream: int,
        memory: int,
        grad: int,
        ids: tuple[int, bool],
        size: int,
        count: int,
        report: tuple[int, int, int],
        /,
    ) -> None: ...

class CudaUpdateOfAll:
    """A step with the gradient of all rows."""

    def __init__(self, update: tuple[Any, ...], /) -> None: ...
    @property
    def bytes(self) -> int: ...
    def run(self, device: CudaDevice, stream: int, memory: int, grad: int, report: tuple[int, int, int], /) -> None: ...

class CudaUpdateFromEntries:
    """A step with entries that are sorted by row."""

    def __init__(
        self,
        update: tuple[Any, ...],
        grad: tuple[int, int, int, int],
        entries: int,
        listed: int,
        mode: int,
        order: int,
        /,
    ) -> None: ...
    @property
    def bytes(self) -> int: ...
    def run(
        self,
        device: CudaDevice,
        stream: int,
        memory: int,
        at: dict[str, int],
        size: int,
        rows: tuple[int, bool],
        starts: int,
        count: int,
        report: tuple[int, int, int],
        /,
    ) -> None: ...

class CudaUpdateFromBags:
    """A step fused with the gradient of sum, mean or sqrtn bags."""

    def __init__(
        self,
        device: CudaDevice,
        update: tuple[Any, ...],
        grad: tuple[int, int, int, int],
        size: int,
        wide_ids: bool,
        reduce: int,
        order: int,
        /,
    ) -> None: ...
    @property
    def bytes(self) -> int: ...
    def run(
        self,
        device: CudaDevice,
        stream: int,
        memory: int,
        ids: tuple[int, bool],
        segments: tuple[int, bool],
        report: tuple[int, int, int],
        /,
    ) -> None: ...

class CudaPreparedStep:
    """A validated step of a table; its tensors must stay unchanged until it runs."""

class CudaPreparedTables:
    """A validated step of tables of one dtype and width; its tensors must stay unchanged until it runs."""

class CudaPreparedRows:
    """A validated step of a table with a row-sparse gradient; its tensors must stay unchanged until it runs."""

class CudaPreparedLists:
    """A validated step of several tables with their row-sparse gradients, as `CudaPreparedRows`."""

class CudaPreparedOp:
    """An op of `cuda_ops()` for inputs of certain shapes and dtypes, which were validated."""

    def __init__(self, kernel: str, constants: list[int], outputs: list[tuple[list[int], Any, int]], /) -> None:
        """Prepare an op; `outputs`: shape, dtype of torch and number of the dtype of each result."""

class CudaRecordedLookup:
    """A lookup of many features, and the memory with what its backward pass needs."""

    @property
    def memory(self) -> Any: ...
    @property
    def bags(self) -> int: ...
    @property
    def segment_shift(self) -> int: ...
    def group(self, number: int, /) -> tuple[int, int, int, list[int], list[int]]:
        """Return where rows and segments are in the memory, their number, and each table's first row and its ids."""

class CudaTorchCalls:
    """Calls with torch tensors in one crossing; None or False where the ops have to do the job."""

    def __init__(
        self,
        device: CudaDevice,
        ledger: CudaLedger,
        kind: int,
        index: int,
        empty: Callable[..., Any],
        place: Any,
        int32: Any,
        int64: Any,
        uint8: Any,
        /,
    ) -> None: ...
    def run_op(self, caller: Any, op: CudaPreparedOp, inputs: list[Any], /) -> tuple[Any, ...] | None:
        """Run an op on tensors and host numbers."""
    def sum_bags(
        self, caller: Any, data: Any, ids: Any, bounds: Any, form: int, bags: int, reduce: int, keeps: bool, /
    ) -> Any:
        """Return the sums and, if `keeps`, the bag of each id. `form`: 0 segments, 1 offsets, 2 with their end."""
    def prepare_step(
        self,
        caller: Any,
        rule: int,
        table: Any,
        slots: list[Any],
        grad: Any,
        ids: Any,
        segments: Any,
        numbers: int,
        lazy: bool,
        random: bool,
        seed: int,
        step: int,
        live: tuple[Any, Any],
        reduce: int,
        order: int,
        /,
    ) -> CudaPreparedStep | None: ...
    def run_step(self, step: CudaPreparedStep, /) -> bool: ...
    def look_up_features(
        self,
        caller: Any,
        tables: list[Any],
        owners: Sequence[int],
        reduce: list[int],
        paddings: list[int],
        ids: Any,
        offsets: Any,
        has_end: bool,
        stacked: bool,
        keeps: bool,
        rows: bool,
    ) -> tuple[list[Any], list[list[int]], list[list[int]], CudaRecordedLookup | None] | None:
        """Return the outputs of each group of tables of one dtype and width, its features and its tables, and what
        backward needs; `rows`: of row gradients."""
    def prepare_tables(
        self,
        caller: Any,
        recorded: CudaRecordedLookup,
        number: int,
        rule: int,
        grads: list[Any],
        stacked: bool,
        updates: list[Any],
        order: int,
        /,
    ) -> CudaPreparedTables | None: ...
    def run_tables(self, step: CudaPreparedTables, /) -> bool: ...
    def row_gradient(
        self, caller: Any, grad: Any, ids: Any, segments: Any, num_rows: int, reduce: int, order: int, /
    ) -> tuple[Any, Any, Any] | None:
        """Return values, ids and their number, all on the device."""
    def unique_rows(
        self, caller: Any, grad: Any, ids: Any, segments: Any, num_rows: int, reduce: int, order: int, /
    ) -> tuple[Any, Any, int, int] | None:
        """Wait for the number of rows; return values and ids, the number, and the address of the fault report."""
    def prepare_rows(
        self,
        caller: Any,
        rule: int,
        table: Any,
        slots: list[Any],
        values: Any,
        ids: Any,
        count: Any,
        numbers: int,
        lazy: bool,
        random: bool,
        seed: int,
        step: int,
        live: tuple[Any, Any],
    ) -> CudaPreparedRows | None: ...
    def run_rows(self, step: CudaPreparedRows, /) -> bool: ...
    def row_gradients(
        self, caller: Any, recorded: CudaRecordedLookup, number: int, grads: list[Any], stacked: bool, order: int, /
    ) -> tuple[Any, Any, Any, list[int]] | None:
        """Return values, ids and numbers of rows of the tables of a group, and the most rows of each table."""
    def dense_gradients(
        self, caller: Any, recorded: CudaRecordedLookup, number: int, grads: list[Any], stacked: bool, order: int, /
    ) -> Any:
        """Return the gradients of the tables of a group: the rows of their stack."""
    def prepare_lists(self, caller: Any, rule: int, updates: list[Any], /) -> CudaPreparedLists | None: ...
    def run_lists(self, step: CudaPreparedLists, /) -> bool: ...
