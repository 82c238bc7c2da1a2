"""Errors and the wording of every message.

Whoever finds a fault names it by key and gives the facts; the words stand here, in one table.
`.message` is TensorFlow's own text where TensorFlow has one; `str(error)` adds the whole call.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self


class OpError(Exception):
    """An op refused its inputs. `message` is the bare text; the other attributes are its facts."""

    def __init__(
        self,
        message: str,
        *,
        argument: str | None = None,
        position: int | None = None,
        value: object = None,
        bound: object = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.argument = argument
        self.position = position
        self.value = value
        self.bound = bound
        self.op: str | None = None
        self.name: str | None = None
        self.call: str | None = None

    def in_call(self, op: str, name: str | None, call: str) -> Self:
        """Add the op, the call's name and its arguments, once."""
        if self.op is None:
            self.op, self.name, self.call = op, name, call
        elif self.op == op and self.name is None:
            self.name = name  # the same call, seen from outside a runner that passed it on
        return self

    def __str__(self) -> str:
        facts = [("argument", self.argument), ("position", self.position), ("value", self.value), ("bound", self.bound)]
        where = ", ".join(f"{k} {v}" for k, v in facts if v is not None)
        text = self.message + (f" [{where}]" if where else "")
        if self.op is None:
            return text
        named = f" (name: {self.name})" if self.name else ""
        return f"{self.op}{named}: {text}; got {self.call}"


class InvalidArgumentError(OpError, ValueError):
    """A value, shape or dtype the op does not take."""


class RowArithmeticError(InvalidArgumentError, TypeError):
    """Arithmetic on a row gradient, or on the ids in it, as if it were an array."""


class NotFoundError(InvalidArgumentError):
    """A dtype the op declares but has no kernel for."""


class InternalError(OpError, RuntimeError):
    """Inputs that contradict each other in a way TensorFlow calls internal."""


class UnimplementedError(OpError, NotImplementedError):
    """Something that exists elsewhere but not here."""


class ResourceExhaustedError(OpError, MemoryError):
    """An output or workspace that cannot fit this machine."""


class CheckpointError(InvalidArgumentError):
    """A checkpoint whose files are damaged, contradict themselves, or are none."""


class CheckpointNotFoundError(OpError, FileNotFoundError):
    """A file of a checkpoint that is not there."""


class TensorNotFoundError(OpError, KeyError):
    """A name that a checkpoint does not have."""


class PartsError(InvalidArgumentError):
    """Parts of a table whose files are damaged, or fit neither one another nor the rule they are to follow."""


class Words(NamedTuple):
    """The text of one fault; `arguments` are where it may stand, the first the op has is named."""

    text: str
    arguments: tuple[str, ...] = ()
    kind: type[OpError] = InvalidArgumentError


_SIZE = ("output_dim0", "dense_output_dim0")
_ROWS = ("value_rowids", "indices")

WORDS: dict[str, Words] = {
    # from kernels: facts position, value, bound
    "out_of_memory": Words(
        "OOM when allocating workspace for {value} elements; this machine has {bound} bytes", (), ResourceExhaustedError
    ),
    "out_of_memory_between": Words(
        "OOM when allocating what is needed on the way to the result", (), ResourceExhaustedError
    ),
    "last_segment_too_big": Words("Last segment id must be < kintmax, got {value} limit {bound}", ("segment_ids",)),
    "segment_negative": Words("segment ids must be >= 0", ("segment_ids",)),
    "num_segments_too_small": Words("segment ids must be < num_segments", ("segment_ids",)),
    "num_segments_too_big": Words("num_segments must be at most {bound}, got {value}", ("num_segments",)),
    "last_segment_overflows": Words("Expected a non-negative size, got {bound}", ("segment_ids",)),
    "segments_not_increasing": Words("segment ids are not increasing", ("segment_ids",)),
    "segment_not_in_output": Words(
        "Segment id {value} out of range [0, {bound}), possibly because 'segment_ids' input is not sorted.",
        ("segment_ids",),
    ),
    "index_not_in_data": Words("Bad: indices[{position}] == {value} out of range [0, {bound})", ("indices",)),
    "index_not_in_params": Words("indices[{position}] = {value} is not in [0, {bound})", ("indices",)),
    "segment_count": Words("Invalid number of segments", ("segment_ids",)),
    "segment_not_in_grad": Words("Segment id {value} out of range [0, {bound}).", ("segment_ids",)),
    "index_not_in_output": Words("Index {value} out of range [0, {bound}).", ("indices",)),
    "row_not_in_shape": Words("indices({position}, 0) is invalid: {value} >= {bound}", _ROWS),
    "reverse_index_not_in_grad": Words(
        "Elements in reverse index must be in [0, {bound}) but got {value}", ("reverse_index_map",)
    ),
    "slice_left_over": Words(
        "Elements of backprop_val_grad aren't all propagated. Num elements:{bound}, used: {value}",
        ("output_indices",),
        InternalError,
    ),
    "id_not_listed": Words("ids[{position}] = {value} is not one of the {bound} sorted_ids", ("ids",)),
    # plans: laws of RowPlan's outputs
    "plan_segments_not_in_grad": Words("the plan has {value} segments, grad only {bound} rows", ("grad",)),
    "plan_rows": Words("rows[{position}] = {value}: a plan's rows ascend and are in [0, {bound})", ("rows",)),
    "plan_starts": Words(
        "starts[{position}] = {value}: a plan's starts ascend from 0 and are in [0, {bound})", ("starts",)
    ),
    "plan_segments": Words("segments[{position}] = {value} is not in [0, {bound}), the plan's counts", ("segments",)),
    "plan_positions": Words(
        "positions[{position}] = {value}: a plan has every position in [0, {bound}) once, ascending inside a row",
        ("positions",),
    ),
    "plan_counts": Words("counts[{position}] = {value}, but segment {position} has {bound} ids", ("counts",)),
    "offsets_begin": Words("offsets[0] must be 0, got {value}", ("offsets",)),
    "offsets_fall": Words("offsets must not fall, but offsets[{position}] = {value} follows {bound}", ("offsets",)),
    "offsets_with_end": Words(
        "include_last_offset is missing: make the module with include_last_offset=False if offsets are where bags"
        " begin, as for torch.nn.EmbeddingBag, or True if these are followed by the number of ids, as in TorchRec and"
        " FBGEMM",
        ("offsets",),
    ),
    "offsets_end": Words("offsets end at {value}, but there are {bound} ids", ("offsets",)),
    "offsets_of_features": Words(
        "offsets must hold one more than a multiple of the {bound} features, got {value}", ("offsets",)
    ),
    "feature_negative": Words("feature {position}: its rows begin or count at {value} < 0", ("feature_rows",)),
    "feature_too_far": Words(
        "feature {position}: its rows begin at {value}, beyond what this dtype of indices reaches ({bound})",
        ("feature_first",),
    ),
    "id_not_in_feature": Words(
        "indices[{position}] = {value} is not in [0, {bound}), the rows of its feature's table", ("indices",)
    ),
    "plan_of_other_table": Words("the plan is of a table of {value} rows, data has {bound}", ("num_rows",)),
    "bags_unfit": Words("{argument}: got {value}; wanted {bound}"),
    "combiner_unknown": Words("{argument} must be one of {bound}; got {value}"),
    "plan_of_other_ids": Words(
        "a plan is made of the ids as they are looked up, so it cannot go with {bound}", ("plan",)
    ),
    "fused_unfit": Words("a fused table does not support {value}; use fused=False"),
    "fused_no_optimizer": Words(
        "a fused table needs a rowgrad optimizer, but no rowgrad optimizer holds it: make one with its parameters"
    ),
    "fused_overwritten": Words(
        "a fused table's gradient is used by step(), but its ids, its weights or the gradient of its bags were"
        " overwritten in place after backward; overwrite them after step(), or use fused=False"
    ),
    "ids_of_sample": Words("sample {position}: {argument} holds numbers of dtype {value}; ids are whole numbers"),
    "sample_unfit": Words("sample {position}: {argument} must be {bound}; got {value}"),
    "feature_unfit": Words("feature {argument}: {value}"),
    "id_of_sample": Words("sample {position}: {argument} holds {value}, which is not in [0, {bound})"),
    "row_outside": Words("{argument} = {value} is not a row of a table of {bound}"),
    "plan_beside_ids": Words(
        "a plan takes the place of indices and segment_ids, and may be of other ids; pass None for them", ("plan",)
    ),
    "plan_num_rows": Words("the plan is for a table of {value} rows; this one has {bound}", ("plan",)),
    "not_a_plan": Words("plan must be a rowgrad.Plan, got {value}", ("plan",)),
    # from shape rules: sizes
    "size_negative": Words("Expected a non-negative size, got {value}", (*_SIZE, "size")),
    "fill_is_a_row": Words("fill_id must be no row of the table: at least {bound}, got {value}", ("fill_id",)),
    "num_segments_negative": Words("segment ids must be >= 0", ("num_segments",)),
    "dimension_negative": Words(
        "Expected shape dimensions to be non-negative, got {value}", ("dense_shape", "nrows", "shape")
    ),
    "no_rows_for_values": Words("Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = {value}", _ROWS),
    "elements_overflow": Words("Encountered overflow when multiplying {value} with {bound}, result: {result}"),
    "shape_overflow": Words("Shape {shape} results in overflow when computing number of elements"),
    "out_of_memory_output": Words(
        "OOM when allocating tensor with shape{shape} and type {value} on "
        "/job:localhost/replica:0/task:0/device:CPU:0 by allocator mklcpu",
        (),
        ResourceExhaustedError,
    ),
    # segment family
    "should_be_vector": Words("{argument} should be a vector."),
    "should_be_scalar": Words("{argument} should be a scalar."),
    "should_be_scalar_not": Words("{argument} should be a scalar, not shape {shape}"),
    "segments_match_indices": Words("segment_ids and indices should have same size.", ("segment_ids",)),
    "data_rank": Words("Shape must be at least rank 1", ("data", "params")),
    "input_rank": Words("input must be at least rank 1", ("data",)),
    "grad_rank": Words("Index must be less than 0, got 0", ("grad",)),
    "segments_match_data": Words("segment_ids should be the same size as dimension 0 of input.", ("segment_ids",)),
    "weights_match": Words("weights and indices should have same size, got {value} and {bound}", ("weights",)),
    "segments_match_weights": Words(
        "weights and segment_ids should have same size, got {value} and {bound}", ("weights",)
    ),
    "rows_match": Words("{argument} must have rows of shape {bound}, got {value}"),
    "lengths_match": Words("{argument} must have length {bound}, got {value}"),
    "elements_match": Words("{argument} must have as many elements as shape {bound}, got {value}"),
    "same_shape": Words("{argument} must have shape {bound}, got {value}"),
    # fill-empty-rows family
    "must_be_vector": Words("{argument} must be a vector, saw: {shape}"),
    "must_be_matrix": Words("{argument} must be a matrix, saw: {shape}"),
    "must_be_scalar": Words("{argument} must be a scalar, saw: {shape}"),
    "values_match_rows": Words(
        "The length of `values` ({value}) must match the first dimension of `{rows}` ({bound}).", ("values",)
    ),
    "shape_matches_columns": Words(
        "The length of `dense_shape` ({value}) must match the second dimension of `indices` ({bound}).",
        ("dense_shape",),
    ),
    "dense_shape_empty": Words("Dense shape cannot be empty.", ("dense_shape",)),
    # slice
    "sparse_rank": Words("Sparse {part} must be rank {bound} but is rank {value}"),
    "values_match_indices": Words(
        "Number of elements in indices ({bound}) and values ({value}) do not match", ("values",)
    ),
    "shape_matches_indices": Words("Index rank ({bound}) and shape rank ({value}) do not match", ("shape",)),
    "input_vector": Words("Input {argument} should be a vector but received shape {shape}"),
    "vector_length": Words("Expected {argument} to be a vector of length {bound} but got length {value}"),
    "slice_matrices": Words("Input and output indices should be matrices but received shapes: {value} and {bound}"),
    "backprop_vector": Words(
        "Input backprop_val_grad should be a vector but received shape: {shape}", ("backprop_val_grad",)
    ),
    "slice_ranks": Words(
        "The input and output should have the same ndims: got: {value} and {bound}", ("output_indices",)
    ),
    "slice_more_rows": Words(
        "# rows of output_indices should be not greater than of input_indices, got {value} and {bound}",
        ("output_indices",),
    ),
    "slice_backprop_length": Words(
        "# elements of backprop_val_grad and # rows of output_indices should match "
        "(#nnz of sum): got {value} and {bound}",
        ("backprop_val_grad",),
    ),
    "start_vector": Words("The input_start should be a vector but received shape {shape}", ("input_start",)),
    # add
    "add_matrices": Words("Input indices should be matrices but received shapes: {shapes}"),
    "add_columns": Words("Input indices must have the same dimension, got {value} and {bound}", ("b_indices",)),
    "add_vectors": Words("Input values should be vectors but received shapes: {shapes}"),
    "add_values": Words("Expected {bound} non-empty input values, got {value}"),
    "add_shapes": Words("Input shapes should be a vector but received shapes {shapes}"),
    "add_shape_columns": Words(
        "Second dimension of a_indices and length of a_shape must match, got {value} and {bound}", ("a_shape",)
    ),
    "add_empty": Words("Tesors must not be empty", ("a_shape",)),
    "add_ranks": Words("Operands do not have the same ranks; got shapes: {value} and {bound}", ("b_shape",)),
    "add_dimensions": Words(
        "Operands' shapes do not match: got {value} and {bound} for dimension {position}", ("b_shape",)
    ),
    "thresh_scalar": Words("The magnitude threshold must be a scalar: got shape {shape}", ("thresh",)),
    "add_grad_ranks": Words(
        "The densified operands should have the same ndims; for A, B, sum got: {value}", ("sum_indices",)
    ),
    "add_backprop_length": Words(
        "# elements of backprop_val_grad and # rows of sum_indices should match (#nnz of sum): got {value} and {bound}",
        ("backprop_val_grad",),
    ),
    # dtypes and attributes
    "dtype_not_allowed": Words("{argument} must be one of {bound}; got {value}"),
    "attr_dtype": Words("Value for attr '{attr}' of {value} is not in the list of allowed values: {bound}"),
    "dtype_without_kernel": Words(
        "{argument} must be one of {bound}; got {value}, which has no kernel", (), NotFoundError
    ),
    "dtype_expected": Words("{argument} must be {bound}{why}; got {value}"),
    "number_does_not_fit": Words("{argument} must hold numbers that {bound} reaches; got {value}"),
    "session_memory": Words(
        "OOM: its values need {value} bytes, and {why} of the session's {bound} bytes are left",
        (),
        ResourceExhaustedError,
    ),
    "page_nodes": Words(
        "the page needs more than {bound} nodes; gradients of gradients multiply them", (), ResourceExhaustedError
    ),
    "fed_twice": Words("{value} is fed twice"),
    "integer_does_not_fit": Words("{argument} must hold values of {bound}; got {value}"),
    "argument_memory": Words(
        "{argument} takes {value} bytes once its elements lie side by side, which are not to be had",
        (),
        ResourceExhaustedError,
    ),
    "not_a_tensor": Words("{argument} must be a tensor; got {value}"),
    "not_an_array": Words("{argument} must be an array; got {value}"),
    "argument_changed": Words(
        "an argument changed its shape, dtype or memory layout during the call; arrays must not change while an op "
        "reads them"
    ),
    "attr_not_allowed": Words("attribute {argument} must be one of {bound}; got {value}"),
    "list_expected": Words("{argument} must be a list of at least one array; got {value}"),
    # the dense layer
    "not_broadcast": Words("{argument} of shape {value} does not broadcast with {bound}"),
    "axis_outside": Words(
        "{argument}[{position}] = {value} is not in [-{bound}, {bound}), the dimensions of the input"
    ),
    "axis_twice": Words("{argument} names dimension {value} twice"),
    "axis_unknown": Words(
        "how many dimensions {argument} names must be known, as it decides the rank of the result: type its value, or "
        "wire a Const"
    ),
    "axis_empty": Words("{argument} = {value} is a dimension of size 0 in shape {bound}, which has no largest element"),
    "one_hot_axis": Words("Expected axis to be -1 or between [0, {bound}).  But received: {value}", ("axis",)),
    "index_outside": Words("{argument} = {value} is not in [-{bound}, {bound})"),
    "rank_at_most": Words("{argument} must have at most {bound} dimensions, got {value}"),
    "rank_at_least": Words("{argument} must have at least {bound} dimensions, got shape {value}"),
    "rank_exactly": Words("{argument} must have {bound} dimensions, got shape {value}"),
    "inner_sizes": Words("{argument} must have an inner dimension of {bound}, as a has; got {value}"),
    "two_unknown": Words("{argument} may hold -1 once, got {value}"),
    "not_one": Words("{argument} can drop dimensions of size 1 only, but dimension {position} has size {value}"),
    "squeeze_unknown": Words("axis must name the dimensions to drop: not all sizes of {value} are known", ("axis",)),
    "not_a_permutation": Words("{argument} must hold every number in [0, {bound}) once, got {value}"),
    "slice_outside": Words(
        "{argument}[{position}] = {value}: the slice must lie inside dimension {position} of size {bound}"
    ),
    "out_type_too_narrow": Words("{argument} has a size of {value}, more than out_type {bound} counts"),
    "range_endless": Words("delta must not be 0", ("delta",)),
    "range_backwards": Words("start = {value} never reaches limit = {bound} by steps of delta = {result}", ("delta",)),
    "division_by_zero": Words("Integer division by zero: {argument}[{position}] = 0"),
    "negative_power": Words("Integers to negative integer powers are not allowed: {argument}[{position}] = {value}"),
    # sparse tensors and lookups
    "string_missing": Words("{argument} must be strings, as the values have no missing ones; got {value}"),
    "string_repeated": Words("indices[{position}] is the place of an earlier entry; strings cannot be added up"),
    "entry_outside": Words("indices[{position}, {column}] = {value} is outside [0, {bound})"),
    "shard_not_there": Words("partitions[{position}] = {value} is not in [0, {bound})", ("sp_ids", "sparse_ids")),
    "shards_disagree": Words("{argument} must have rows of {bound}; got {value}"),
    "fewer_rows_than_shards": Words("Integer division by zero", ("params", "embedding_weights")),
    "id_outside": Words("{argument}[{position}] = {value} is not in a table of {bound} rows"),
    "id_negative": Words("{argument}[{position}] = {value} is negative"),
    "fewer_rows_than_parts": Words(
        'by "div" no row of {value} is found in {bound} parts: the rule divides by {value} // {bound} = 0'
    ),
    "div_needs_rows": Words('{argument} must be given: by "div" it decides where parts begin'),
    "count_unfit": Words("{argument} must be a whole number of at least {bound}; got {value}"),
    "part_outside": Words("{argument}[{position}] = {value} is none of {bound} parts"),
    "row_not_in_part": Words("{argument}[{position}] = {value} is not in [0, {bound}), the rows of its part"),
    "stitch_parts": Words("{argument} must hold an array for each of {bound} parts; got {value}"),
    "mask_needs_columns": Words("slice index 1 of dimension 0 out of bounds.", ("embedding_weights",)),
    "mask_needs_rank_2": Words(
        "Inputs to operation Select of type Select must have the same size and shape.  "
        "Input 0: {value} != input 1: {bound}",
        ("embedding_weights",),
    ),
    "nothing_to_hold": Words(
        "Input tensor has {value} non zero elements but input shape ({shape}) or output shape ({bound}) is empty",
        ("sparse_ids",),
    ),
    # updates of tables
    "rows_exceed_size": Words("size is {bound}, but {value} rows are named", ("size",)),
    "row_ids": Words("row_ids[{position}] = {value}: row ids ascend strictly and are in [0, {bound})", ("row_ids",)),
    "number_unfit": Words("{argument} must be {bound}; got {value}"),
    "slot_count": Words("slots must be {bound}; got {value}", ("slots",)),
    "updated_unfit": Words("{argument} is updated in place and must be {bound}; got {value}"),
    "updated_overlaps": Words("{argument} is updated in place and shares memory with {value}"),
    "not_here": Words("{argument} must be {bound}; got {value}", (), UnimplementedError),
    # outputs given by the caller
    "out_unfit": Words("out for {argument} must be {bound}; got {value}"),
    "out_overlaps": Words("out for {argument} shares memory with {value}"),
    "out_count": Words("out must give {bound} arrays, got {value}"),
    # checkpoints: `file` is a path, with the part of the file that is meant
    "checkpoint_not_there": Words("{file}: no such file", (), CheckpointNotFoundError),
    "checkpoint_state": Words('{file}: no line model_checkpoint_path: "…"', (), CheckpointError),
    "checkpoint_malformed": Words("{file}: malformed at byte {position}: {why}", (), CheckpointError),
    "checkpoint_value": Words("{file}: {what} is {value}; must be {bound}", (), CheckpointError),
    "checkpoint_outside": Words(
        "{file}: {what} at bytes [{begin}, {value}) is not in [0, {bound})", (), CheckpointError
    ),
    "checkpoint_checksum": Words("{file}: checksum of {what} is {value}, stored is {bound}", (), CheckpointError),
    "checkpoint_changed": Words("{file}: the file was written while it was read; read again", (), CheckpointError),
    "checkpoint_slice": Words("{file}: slice (start, length) {value} is not in shape {bound}", (), CheckpointError),
    "checkpoint_cover": Words("{file}: slices {why} the tensor of shape {bound}", (), CheckpointError),
    "checkpoint_version": Words(
        "{file}: made for readers of version {value}, this one is of version {bound}", (), UnimplementedError
    ),
    "checkpoint_dtype": Words("{file}: dtype {value} is not read here", (), UnimplementedError),
    "checkpoint_elsewhere": Words(
        "{file}: it names {value}, which is outside of its directory; pass that path itself, or follow_links=True",
        (),
        CheckpointError,
    ),
    "checkpoint_memory": Words("{file}: {value} bytes; this machine has {bound}", (), ResourceExhaustedError),
    "checkpoint_no_tensor": Words("{file}: no {value} among {bound} tensors{why}", (), TensorNotFoundError),
    "checkpoint_rows": Words("{file}: rows must be a slice of step 1 of shape {bound}; got {value}"),
    # tables in parts: `file` is a path, with the part of the file that is meant
    "parts_value": Words("{file}: {what} is {value}; must be {bound}", (), PartsError),
    "parts_malformed": Words("{file}: {why}", (), PartsError),
    "parts_missing": Words("{file}: part {value} of {bound} is missing", (), PartsError),
    "parts_no_tensor": Words("{file}: there is no tensor {value}; there are {bound}", (), TensorNotFoundError),
    "parts_differ": Words(
        "{file}: {what} is {value}, elsewhere {bound}; it must be the same in all parts", (), PartsError
    ),
    "parts_rows": Words(
        "{file}: {what} has {value} rows, the table {bound}, and is not the same in all parts; `table` says which"
        " tensor is the table",
        (),
        PartsError,
    ),
    "parts_strategy": Words(
        '{file}: parts of both rules look alike; from_strategy must be "div" or "mod" (on the command line'
        " --from-strategy)",
        (),
        PartsError,
    ),
    "parts_dtype": Words("{file}: {what} has dtype {value}, which {bound} files do not hold", (), UnimplementedError),
    "parts_memory": Words(
        "{file}: a row of {what} has {value} bytes; with this memory it may have {bound}", (), PartsError
    ),
    "parts_same": Words(
        "{argument} must lie elsewhere: it would take the place of what is read", ("target",), PartsError
    ),
    "parts_which": Words("{file}: {argument} must name the tensors to be read; there are {value}", (), PartsError),
    # graphs
    "pin_missing": Words("{argument} is neither wired nor typed in"),
    "attr_unknown": Words("there is no attribute {argument}; there are {bound}"),
    "attr_kind": Words("attribute {argument} must be {bound}; got {value}"),
    "pin_unclear": Words("{argument} is a {value} with several outputs: name one of {bound}"),
    "pin_kind": Words("{argument} takes {bound}; got {value}"),
    "pin_of_other_graph": Words("{argument} comes from another graph: {value}"),
    "not_a_variable": Words("{argument} must be wired to a Variable; got {value}"),
    "name_unfit": Words("a name is letters, digits and _ . \\ / > -; got {value}"),
    "value_unfit": Words("{argument} must be {bound}; got {value}"),
    "initial_value_varies": Words(
        "{argument} must be typed in, or computed from constants and random numbers; {value} needs a run"
    ),
    "fed_not_a_placeholder": Words("only placeholders are fed; {value} is not one"),
    "fed_varies": Words("{argument} must be a value that is known before the run; {value} is computed in it"),
    "not_fed": Words("{value} is not fed, and {bound} needs it"),
    "updated_twice": Words("{value} is updated twice in one run, by {bound}"),
    "unconnected": Words(
        'no gradient flows from outputs to {argument} ({value}); unconnected_gradients="zero" gives zeros'
    ),
    "gradient_of_nothing": Words("{argument} ({value}) is of dtype {bound}, which has no gradient"),
    "fetch_unknown": Words("there is no {argument} in this graph{why}"),
    "engine_unfit": Words("engine {value} cannot be used here: {why}"),
    "engine_unknown": Words("there is no engine {value}; there are {bound}"),
    "rank_unknown": Words("{argument}: its rank must be known here; give the Placeholder a shape (-1 for open sizes)"),
    # elsewhere
    "no_memory": Words("{argument} has no memory: its storage was given away or freed"),
    "storage_too_small": Words(
        "{argument} spans {value} bytes of its storage, which holds {bound}: the storage was resized after the tensor"
        " was made"
    ),
    "checkpoint_lacks": Words("the checkpoint has no {argument}{why}"),
    "checkpoint_slot": Words("the checkpoint has {argument}, which {why} does not have: it is of another optimizer"),
    "checkpoint_rule": Words(
        "{argument} of the checkpoint has shape {value}, but {why} needs {bound}: it is of another optimizer"
    ),
    "checkpoint_unreadable": Words("{file}: cannot be read, so nothing was loaded: {why}", (), CheckpointError),
    "checkpoint_unwritten": Words("{file}: was not written to the end: {why}", (), CheckpointError),
    "checkpoint_groups": Words(
        "the checkpoint has {value} parameter groups of an optimizer, this optimizer has {bound}"
    ),
    "state_layout_missing": Words(
        "the state dict has no {argument}, which says what rows it holds; if a module split like this one saved it, set"
        " that entry to this module's get_extra_state()"
    ),
    "state_layout_unreadable": Words("{argument} must be bytes of JSON in a tensor, got {value}"),
    "state_layout_differs": Words(
        "the state dict holds other rows: {value}; this module holds {bound}; use rowgrad.torch.sharded.checkpoint, or"
        " load_full with the whole table"
    ),
    "optimizer_layout_missing": Words(
        "the state of {argument} has no layout, which says what rows it belongs to; if an optimizer of a module split"
        " like this one saved it, set state_dict['state'][…]['layout'] to the parameter's rowgrad_layout; otherwise use"
        " rowgrad.torch.sharded.checkpoint"
    ),
    "optimizer_layout_unreadable": Words("the layout in the state of {argument} must be JSON text, got {value}"),
    "optimizer_layout_differs": Words(
        "the state of {argument} belongs to other rows: {value}; the parameter holds {bound}; use"
        " rowgrad.torch.sharded.checkpoint, which moves the state with its rows"
    ),
    "mixed_devices": Words("{argument} is on {value}, but an argument before it is on {bound}"),
    "fused_changed": Words(
        "a fused table was changed between forward and backward, so the gradient of per_sample_weights is lost"
    ),
    "plan_unfit": Words("the plan is of {value}, the bags have {bound}", ("plan",)),
    "no_kernel_for_device": Words("{argument} is on {value}; this op has kernels for {bound}", (), UnimplementedError),
    "jit_trace": Words(
        "torch.jit.trace is not supported: it would record sizes as constants; use torch.export or torch.compile",
        (),
        UnimplementedError,
    ),
    "functionalize": Words(
        "torch.func.functionalize is not supported; no op here writes in place, so call it without",
        (),
        UnimplementedError,
    ),
    "forward_mode": Words(
        "forward-mode differentiation is not implemented; use reverse mode (backward, torch.func.vjp, jacrev)",
        (),
        UnimplementedError,
    ),
    "host_traced": Words(
        "{argument} decides a shape, so it must be a number when the call is compiled, not a traced array; "
        "make it an int, or an argument in static_argnums"
    ),
    "size_traced": Words("how many rows come out depends on data, which a compiler does not see; {bound}"),
    "shards_traced": Words("ids that are traced are looked up in one table, not in {value} shards; join them first"),
    "batch_unfit": Words("vmap: {argument} must not differ between the items of a batch here; {bound}"),
    "batch_too_large": Words(
        "vmap: the items' {argument} would be numbers up to {value} in one call, but integers end at {bound}; set"
        " jax_enable_x64, or use jax.lax.map",
        (),
        UnimplementedError,
    ),
    "table_unfit": Words("a Table's {argument} must be {bound}; got {value}"),
    "table_in_parts": Words(
        "the table is split into parts, whose rows are not numbered like ids; use rowgrad.jax.sharded.embedding_bag"
        " inside shard_map",
        ("table",),
        UnimplementedError,
    ),
    "part_without_layout": Words(
        "{argument} must be a ShardedTable, which knows how its rows are split; got {value}; split the table with"
        " shard_table, or state the layout of parts once with ShardedTable(parts, Layout(num_rows, devices, axis,"
        " strategy))"
    ),
    "layout_differs": Words("{argument}: got {value}, but the table was split with {bound}"),
    "table_tapped": Words(
        "inside value_and_rows a table is read by table.bags alone: a gradient by rows is that of lookups, and the"
        " gradient of anything else would be lost; use jax.value_and_grad, whose gradients are whole tables. Functions"
        " under jit, vmap, grad, scan, cond or checkpoint take no table there either: pass them what was looked up"
    ),
    "table_sharded": Words(
        "the {value} of a table are sharded over {bound} under jit, so every device would gather the whole table; split"
        " its rows with rowgrad.jax.sharded.shard_table and look it up with rowgrad.jax.sharded.embedding_bag inside"
        " shard_map, or replicate it",
        ("data", "params", "table"),
    ),
    "mesh_unknown": Words(
        "{argument}: the mesh of sharded operands is unknown here; call it inside shard_map", (), UnimplementedError
    ),
    "table_lost": Words(
        "value_and_rows: a Table was taken apart, so its array is a plain parameter and would get a dense gradient;"
        " pass a tree that holds the Table itself (in flax.nnx: nnx.Param(Table(…)), or the module for its state), or"
        " look the array up with rowgrad.jax.embedding_bag for a dense gradient"
    ),
    "rows_unchecked": Words(
        "value_and_rows: JAX does not track here which arrays differ over {value}, so every device would update a table"
        " that all of them share by its own rows alone; use shard_map without check_vma=False, jax.value_and_grad with"
        " jax.lax.psum, or a table split by rowgrad.jax.sharded",
        ("table",),
        UnimplementedError,
    ),
    "lookup_unfit": Words(
        "inside value_and_rows a lookup takes no {argument}: its gradient by rows is that of its ids"
    ),
    "lookups_differ": Words(
        "value_and_rows: the function looked up other tables, or otherwise, when it was traced again; it must do the"
        " same every time"
    ),
    "module_changed": Words(
        "value_and_rows: the function removed {value} from the module; keep all Variables of a module"
    ),
    "lookup_inside": Words(
        "value_and_rows: a table is looked up within jit, vmap, grad, scan, cond or checkpoint inside of the function,"
        " from where its ids cannot come out; look it up outside of them"
    ),
    "rows_exported": Words(
        "jax.export cannot serialize a program that takes or returns row gradients; let it take and return their values"
        " and indices, and make an IndexedRows of them outside",
        (),
        UnimplementedError,
    ),
    "rows_changed": Words("the ids of a row gradient must be integers; got {value}", ("updates",)),
    "rows_arithmetic": Words(
        "a row gradient is not an array: scale, add, clip and sum it with rowgrad.jax.rows, apply optax transformations"
        " with rowgrad.jax.rows.on_rows, or make it dense with rowgrad.jax.rows.to_dense (NumPy: rowgrad.densify)",
        (),
        RowArithmeticError,
    ),
    "row_ids_arithmetic": Words(
        "{what} is not defined for the row ids of a gradient, which functions of arrays would change together"
        " with its values; use rowgrad.jax.rows.{function} on the whole gradient, apply optax transformations with"
        " rowgrad.jax.rows.on_rows, or make the gradient dense with rowgrad.jax.rows.to_dense",
        (),
        RowArithmeticError,
    ),
    "rows_shapes": Words("row gradients that are added must have one shape; got {value} and {bound}"),
    "transformation_unfit": Words(
        "on_rows cannot apply {value} to row gradients: {why}; use the optimizers of rowgrad.jax.optim for tables, and"
        " optax.multi_transform to apply it to other parameters",
        ("transformation",),
    ),
    "gradient_complex": Words(
        "optimizers of rowgrad.jax take gradients of real numbers; got {value}; use optax.multi_transform to"
        " train such parameters in another way",
        ("updates",),
    ),
    "rows_stacked": Words(
        "the ids of a row gradient must have rank 1; got rank {value}; sum a stack of row gradients with"
        " rowgrad.jax.rows.accumulate",
        ("updates",),
    ),
    "rows_not_stacked": Words(
        "accumulate takes row gradients stacked along a leading axis; got ids of rank {value}",
        ("stacked",),
    ),
    "update_unfit": Words(
        "a gradient or an update must have the shape of its parameter, {bound}; got {value}", ("updates",)
    ),
    "update_dtype": Words(
        "an update of {value} cannot be added to a parameter of {bound} without losing a part of it", ("updates",)
    ),
    "parameter_unfit": Words(
        "a gradient of {value} was given for a parameter that is not a floating-point array: its gradient must be None",
        ("updates",),
    ),
    "state_unfit": Words(
        "the state must be what init of this optimizer ({value}) returned for these parameters, with {why}", ("state",)
    ),
    "needs_params": Words("{value} decays weights: update must be given params", ("params",)),
    "no_runner": Words("no runner for {value}; {bound}", (), UnimplementedError),
    "mixed_runners": Words("arguments of one call must belong together; got {value} and {bound}"),
}


def shape_text(shape: tuple[int | None, ...]) -> str:
    """TensorFlow's way to print a shape: [2,3], unknown dimensions as ?."""
    return "[" + ",".join("?" if d is None else str(d) for d in shape) + "]"


def refuse(key: str, has: tuple[str, ...] = (), **facts: Any) -> OpError:
    """Word a fault. `has` are the op's argument names; facts fill the text and stay on the error."""
    words = WORDS[key]
    argument = facts.get("argument")
    if argument is None:
        argument = next((a for a in words.arguments if a in has or not has), None)
    position = facts.get("position")
    return words.kind(
        words.text.format_map(facts),
        argument=argument if isinstance(argument, str) else None,
        position=position if isinstance(position, int) and position >= 0 else None,
        value=facts.get("value"),
        bound=facts.get("bound"),
    )
