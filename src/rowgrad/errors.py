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


class ShardError(InvalidArgumentError):
    """Parts of a table whose files are damaged, or fit neither one another nor the rule they are to follow."""


class Message(NamedTuple):
    """The text of one fault; `arguments` are where it may stand, the first the op has is named."""

    text: str
    arguments: tuple[str, ...] = ()
    kind: type[OpError] = InvalidArgumentError


_SIZE = ("output_dim0", "dense_output_dim0")
_ROWS = ("value_rowids", "indices")

MESSAGES: dict[str, Message] = {
    # from kernels: facts position, value, bound
    "out_of_memory": Message(
        "OOM when allocating workspace for {value} elements; this machine has {bound} bytes", (), ResourceExhaustedError
    ),
    "out_of_memory_between": Message(
        "OOM when allocating what is needed on the way to the result", (), ResourceExhaustedError
    ),
    "last_segment_too_big": Message("Last segment id must be < kintmax, got {value} limit {bound}", ("segment_ids",)),
    "segment_negative": Message("segment ids must be >= 0", ("segment_ids",)),
    "num_segments_too_small": Message("segment ids must be < num_segments", ("segment_ids",)),
    "num_segments_too_big": Message("num_segments must be at most {bound}, got {value}", ("num_segments",)),
    "last_segment_overflows": Message("Expected a non-negative size, got {bound}", ("segment_ids",)),
    "segments_not_increasing": Message("segment ids are not increasing", ("segment_ids",)),
    "segment_not_in_output": Message(
        "Segment id {value} out of range [0, {bound}), possibly because 'segment_ids' input is not sorted.",
        ("segment_ids",),
    ),
    "index_not_in_data": Message("Bad: indices[{position}] == {value} out of range [0, {bound})", ("indices",)),
    "index_not_in_params": Message("indices[{position}] = {value} is not in [0, {bound})", ("indices",)),
    "segment_count": Message("Invalid number of segments", ("segment_ids",)),
    "segment_not_in_grad": Message("Segment id {value} out of range [0, {bound}).", ("segment_ids",)),
    "index_not_in_output": Message("Index {value} out of range [0, {bound}).", ("indices",)),
    "row_not_in_shape": Message("indices({position}, 0) is invalid: {value} >= {bound}", _ROWS),
    "reverse_index_not_in_grad": Message(
        "Elements in reverse index must be in [0, {bound}) but got {value}", ("reverse_index_map",)
    ),
    "slice_left_over": Message(
        "Elements of backprop_val_grad aren't all propagated. Num elements:{bound}, used: {value}",
        ("output_indices",),
        InternalError,
    ),
    "id_not_listed": Message("ids[{position}] = {value} is not one of the {bound} sorted_ids", ("ids",)),
    # plans: laws of RowPlan's outputs
    "plan_segments_not_in_grad": Message("the plan has {value} segments, grad only {bound} rows", ("grad",)),
    "plan_rows": Message("rows[{position}] = {value}: a plan's rows ascend and are in [0, {bound})", ("rows",)),
    "plan_starts": Message(
        "starts[{position}] = {value}: a plan's starts ascend from 0 and are in [0, {bound})", ("starts",)
    ),
    "plan_segments": Message("segments[{position}] = {value} is not in [0, {bound}), the plan's counts", ("segments",)),
    "plan_positions": Message(
        "positions[{position}] = {value}: a plan has every position in [0, {bound}) once, ascending inside a row",
        ("positions",),
    ),
    "plan_counts": Message("counts[{position}] = {value}, but segment {position} has {bound} ids", ("counts",)),
    "offsets_begin": Message("offsets[0] must be 0, got {value}", ("offsets",)),
    "offsets_fall": Message("offsets must not fall, but offsets[{position}] = {value} follows {bound}", ("offsets",)),
    "offsets_with_end": Message(
        "include_last_offset is missing: make the module with include_last_offset=False if offsets are where bags"
        " begin, as for torch.nn.EmbeddingBag, or True if these are followed by the number of ids, as in TorchRec and"
        " FBGEMM",
        ("offsets",),
    ),
    "offsets_end": Message("offsets end at {value}, but there are {bound} ids", ("offsets",)),
    "offsets_of_features": Message(
        "offsets must hold one more than a multiple of the {bound} features, got {value}", ("offsets",)
    ),
    "feature_negative": Message("feature {position}: its rows begin or count at {value} < 0", ("feature_rows",)),
    "feature_too_far": Message(
        "feature {position}: its rows begin at {value}, beyond what this dtype of indices reaches ({bound})",
        ("feature_first",),
    ),
    "id_not_in_feature": Message(
        "indices[{position}] = {value} is not in [0, {bound}), the rows of its feature's table", ("indices",)
    ),
    "plan_of_other_table": Message("the plan is of a table of {value} rows, data has {bound}", ("num_rows",)),
    "bags_unfit": Message("{argument}: got {value}; wanted {bound}"),
    "combiner_unknown": Message("{argument} must be one of {bound}; got {value}"),
    "plan_of_other_ids": Message(
        "a plan is made of the ids as they are looked up, so it cannot go with {bound}", ("plan",)
    ),
    "fused_unfit": Message("a fused table does not support {value}; use fused=False"),
    "fused_no_optimizer": Message(
        "a fused table needs a rowgrad optimizer, but no rowgrad optimizer holds it: make one with its parameters"
    ),
    "fused_overwritten": Message(
        "a fused table's gradient is used by step(), but its ids, its weights or the gradient of its bags were"
        " overwritten in place after backward; overwrite them after step(), or use fused=False"
    ),
    "ids_of_sample": Message("sample {position}: {argument} holds numbers of dtype {value}; ids are whole numbers"),
    "sample_unfit": Message("sample {position}: {argument} must be {bound}; got {value}"),
    "feature_unfit": Message("feature {argument}: {value}"),
    "id_of_sample": Message("sample {position}: {argument} holds {value}, which is not in [0, {bound})"),
    "row_outside": Message("{argument} = {value} is not a row of a table of {bound}"),
    "plan_beside_ids": Message(
        "a plan takes the place of indices and segment_ids, and may be of other ids; pass None for them", ("plan",)
    ),
    "plan_num_rows": Message("the plan is for a table of {value} rows; this one has {bound}", ("plan",)),
    "not_a_plan": Message("plan must be a rowgrad.Plan, got {value}", ("plan",)),
    # from shape rules: sizes
    "size_negative": Message("Expected a non-negative size, got {value}", (*_SIZE, "size")),
    "fill_is_a_row": Message("fill_id must be no row of the table: at least {bound}, got {value}", ("fill_id",)),
    "num_segments_negative": Message("segment ids must be >= 0", ("num_segments",)),
    "dimension_negative": Message(
        "Expected shape dimensions to be non-negative, got {value}", ("dense_shape", "nrows", "shape")
    ),
    "no_rows_for_values": Message(
        "Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = {value}", _ROWS
    ),
    "elements_overflow": Message("Encountered overflow when multiplying {value} with {bound}, result: {result}"),
    "shape_overflow": Message("Shape {shape} results in overflow when computing number of elements"),
    "out_of_memory_output": Message(
        "OOM when allocating tensor with shape{shape} and type {value} on "
        "/job:localhost/replica:0/task:0/device:CPU:0 by allocator mklcpu",
        (),
        ResourceExhaustedError,
    ),
    # segment family
    "should_be_vector": Message("{argument} should be a vector."),
    "should_be_scalar": Message("{argument} should be a scalar."),
    "should_be_scalar_not": Message("{argument} should be a scalar, not shape {shape}"),
    "segments_match_indices": Message("segment_ids and indices should have same size.", ("segment_ids",)),
    "data_rank": Message("Shape must be at least rank 1", ("data", "params")),
    "input_rank": Message("input must be at least rank 1", ("data",)),
    "grad_rank": Message("Index must be less than 0, got 0", ("grad",)),
    "segments_match_data": Message("segment_ids should be the same size as dimension 0 of input.", ("segment_ids",)),
    "weights_match": Message("weights and indices should have same size, got {value} and {bound}", ("weights",)),
    "segments_match_weights": Message(
        "weights and segment_ids should have same size, got {value} and {bound}", ("weights",)
    ),
    "rows_match": Message("{argument} must have rows of shape {bound}, got {value}"),
    "lengths_match": Message("{argument} must have length {bound}, got {value}"),
    "elements_match": Message("{argument} must have as many elements as shape {bound}, got {value}"),
    "same_shape": Message("{argument} must have shape {bound}, got {value}"),
    # fill-empty-rows family
    "must_be_vector": Message("{argument} must be a vector, saw: {shape}"),
    "must_be_matrix": Message("{argument} must be a matrix, saw: {shape}"),
    "must_be_scalar": Message("{argument} must be a scalar, saw: {shape}"),
    "values_match_rows": Message(
        "The length of `values` ({value}) must match the first dimension of `{rows}` ({bound}).", ("values",)
    ),
    "shape_matches_columns": Message(
        "The length of `dense_shape` ({value}) must match the second dimension of `indices` ({bound}).",
        ("dense_shape",),
    ),
    "dense_shape_empty": Message("Dense shape cannot be empty.", ("dense_shape",)),
    # slice
    "sparse_rank": Message("Sparse {part} must be rank {bound} but is rank {value}"),
    "values_match_indices": Message(
        "Number of elements in indices ({bound}) and values ({value}) do not match", ("values",)
    ),
    "shape_matches_indices": Message("Index rank ({bound}) and shape rank ({value}) do not match", ("shape",)),
    "input_vector": Message("Input {argument} should be a vector but received shape {shape}"),
    "vector_length": Message("Expected {argument} to be a vector of length {bound} but got length {value}"),
    "slice_matrices": Message("Input and output indices should be matrices but received shapes: {value} and {bound}"),
    "backprop_vector": Message(
        "Input backprop_val_grad should be a vector but received shape: {shape}", ("backprop_val_grad",)
    ),
    "slice_ranks": Message(
        "The input and output should have the same ndims: got: {value} and {bound}", ("output_indices",)
    ),
    "slice_more_rows": Message(
        "# rows of output_indices should be not greater than of input_indices, got {value} and {bound}",
        ("output_indices",),
    ),
    "slice_backprop_length": Message(
        "# elements of backprop_val_grad and # rows of output_indices should match "
        "(#nnz of sum): got {value} and {bound}",
        ("backprop_val_grad",),
    ),
    "start_vector": Message("The input_start should be a vector but received shape {shape}", ("input_start",)),
    # add
    "add_matrices": Message("Input indices should be matrices but received shapes: {shapes}"),
    "add_columns": Message("Input indices must have the same dimension, got {value} and {bound}", ("b_indices",)),
    "add_vectors": Message("Input values should be vectors but received shapes: {shapes}"),
    "add_values": Message("Expected {bound} non-empty input values, got {value}"),
    "add_shapes": Message("Input shapes should be a vector but received shapes {shapes}"),
    "add_shape_columns": Message(
        "Second dimension of a_indices and length of a_shape must match, got {value} and {bound}", ("a_shape",)
    ),
    "add_empty": Message("Tesors must not be empty", ("a_shape",)),
    "add_ranks": Message("Operands do not have the same ranks; got shapes: {value} and {bound}", ("b_shape",)),
    "add_dimensions": Message(
        "Operands' shapes do not match: got {value} and {bound} for dimension {position}", ("b_shape",)
    ),
    "thresh_scalar": Message("The magnitude threshold must be a scalar: got shape {shape}", ("thresh",)),
    "add_grad_ranks": Message(
        "The densified operands should have the same ndims; for A, B, sum got: {value}", ("sum_indices",)
    ),
    "add_backprop_length": Message(
        "# elements of backprop_val_grad and # rows of sum_indices should match (#nnz of sum): got {value} and {bound}",
        ("backprop_val_grad",),
    ),
    # dtypes and attributes
    "dtype_not_allowed": Message("{argument} must be one of {bound}; got {value}"),
    "attr_dtype": Message("Value for attr '{attr}' of {value} is not in the list of allowed values: {bound}"),
    "dtype_without_kernel": Message(
        "{argument} must be one of {bound}; got {value}, which has no kernel", (), NotFoundError
    ),
    "dtype_expected": Message("{argument} must be {bound}{why}; got {value}"),
    "number_does_not_fit": Message("{argument} must hold numbers that {bound} reaches; got {value}"),
    "session_memory": Message(
        "OOM: its values need {value} bytes, and {why} of the session's {bound} bytes are left",
        (),
        ResourceExhaustedError,
    ),
    "page_nodes": Message(
        "the page needs more than {bound} nodes; gradients of gradients multiply them", (), ResourceExhaustedError
    ),
    "fed_twice": Message("{value} is fed twice"),
    "integer_does_not_fit": Message("{argument} must hold values of {bound}; got {value}"),
    "argument_memory": Message(
        "{argument} takes {value} bytes once its elements lie side by side, which are not to be had",
        (),
        ResourceExhaustedError,
    ),
    "not_a_tensor": Message("{argument} must be a tensor; got {value}"),
    "not_an_array": Message("{argument} must be an array; got {value}"),
    "argument_changed": Message(
        "an argument changed its shape, dtype or memory layout during the call; arrays must not change while an op "
        "reads them"
    ),
    "attr_not_allowed": Message("attribute {argument} must be one of {bound}; got {value}"),
    "list_expected": Message("{argument} must be a list of at least one array; got {value}"),
    # the dense layer
    "not_broadcast": Message("{argument} of shape {value} does not broadcast with {bound}"),
    "axis_outside": Message(
        "{argument}[{position}] = {value} is not in [-{bound}, {bound}), the dimensions of the input"
    ),
    "axis_twice": Message("{argument} names dimension {value} twice"),
    "axis_unknown": Message(
        "how many dimensions {argument} names must be known, as it decides the rank of the result: type its value, or "
        "wire a Const"
    ),
    "axis_empty": Message(
        "{argument} = {value} is a dimension of size 0 in shape {bound}, which has no largest element"
    ),
    "one_hot_axis": Message("Expected axis to be -1 or between [0, {bound}).  But received: {value}", ("axis",)),
    "index_outside": Message("{argument} = {value} is not in [-{bound}, {bound})"),
    "rank_at_most": Message("{argument} must have at most {bound} dimensions, got {value}"),
    "rank_at_least": Message("{argument} must have at least {bound} dimensions, got shape {value}"),
    "rank_exactly": Message("{argument} must have {bound} dimensions, got shape {value}"),
    "inner_sizes": Message("{argument} must have an inner dimension of {bound}, as a has; got {value}"),
    "two_unknown": Message("{argument} may hold -1 once, got {value}"),
    "not_one": Message("{argument} can drop dimensions of size 1 only, but dimension {position} has size {value}"),
    "squeeze_unknown": Message("axis must name the dimensions to drop: not all sizes of {value} are known", ("axis",)),
    "not_a_permutation": Message("{argument} must hold every number in [0, {bound}) once, got {value}"),
    "slice_outside": Message(
        "{argument}[{position}] = {value}: the slice must lie inside dimension {position} of size {bound}"
    ),
    "out_type_too_narrow": Message("{argument} has a size of {value}, more than out_type {bound} counts"),
    "range_endless": Message("delta must not be 0", ("delta",)),
    "range_backwards": Message(
        "start = {value} never reaches limit = {bound} by steps of delta = {result}", ("delta",)
    ),
    "division_by_zero": Message("Integer division by zero: {argument}[{position}] = 0"),
    "negative_power": Message("Integers to negative integer powers are not allowed: {argument}[{position}] = {value}"),
    # sparse tensors and lookups
    "string_missing": Message("{argument} must be strings, as the values have no missing ones; got {value}"),
    "string_repeated": Message("indices[{position}] is the place of an earlier entry; strings cannot be added up"),
    "entry_outside": Message("indices[{position}, {column}] = {value} is outside [0, {bound})"),
    "shard_not_there": Message("partitions[{position}] = {value} is not in [0, {bound})", ("sp_ids", "sparse_ids")),
    "shards_disagree": Message("{argument} must have rows of {bound}; got {value}"),
    "fewer_rows_than_shards": Message("Integer division by zero", ("params", "embedding_weights")),
    "id_outside": Message("{argument}[{position}] = {value} is not in a table of {bound} rows"),
    "id_negative": Message("{argument}[{position}] = {value} is negative"),
    "fewer_rows_than_parts": Message(
        'by "div" no row of {value} is found in {bound} parts: the rule divides by {value} // {bound} = 0'
    ),
    "div_needs_rows": Message('{argument} must be given: by "div" it decides where parts begin'),
    "count_unfit": Message("{argument} must be a whole number of at least {bound}; got {value}"),
    "part_outside": Message("{argument}[{position}] = {value} is none of {bound} parts"),
    "row_not_in_part": Message("{argument}[{position}] = {value} is not in [0, {bound}), the rows of its part"),
    "stitch_parts": Message("{argument} must hold an array for each of {bound} parts; got {value}"),
    "mask_needs_columns": Message("slice index 1 of dimension 0 out of bounds.", ("embedding_weights",)),
    "mask_needs_rank_2": Message(
        "Inputs to operation Select of type Select must have the same size and shape.  "
        "Input 0: {value} != input 1: {bound}",
        ("embedding_weights",),
    ),
    "nothing_to_hold": Message(
        "Input tensor has {value} non zero elements but input shape ({shape}) or output shape ({bound}) is empty",
        ("sparse_ids",),
    ),
    # updates of tables
    "rows_exceed_size": Message("size is {bound}, but {value} rows are named", ("size",)),
    "row_ids": Message("row_ids[{position}] = {value}: row ids ascend strictly and are in [0, {bound})", ("row_ids",)),
    "number_unfit": Message("{argument} must be {bound}; got {value}"),
    "slot_count": Message("slots must be {bound}; got {value}", ("slots",)),
    "updated_unfit": Message("{argument} is updated in place and must be {bound}; got {value}"),
    "updated_overlaps": Message("{argument} is updated in place and shares memory with {value}"),
    "not_here": Message("{argument} must be {bound}; got {value}", (), UnimplementedError),
    # outputs given by the caller
    "out_unfit": Message("out for {argument} must be {bound}; got {value}"),
    "out_overlaps": Message("out for {argument} shares memory with {value}"),
    "out_count": Message("out must give {bound} arrays, got {value}"),
    # checkpoints: `file` is a path, with the part of the file that is meant
    "checkpoint_not_there": Message("{file}: no such file", (), CheckpointNotFoundError),
    "checkpoint_state": Message('{file}: no line model_checkpoint_path: "…"', (), CheckpointError),
    "checkpoint_malformed": Message("{file}: malformed at byte {position}: {why}", (), CheckpointError),
    "checkpoint_value": Message("{file}: {what} is {value}; must be {bound}", (), CheckpointError),
    "checkpoint_outside": Message(
        "{file}: {what} at bytes [{begin}, {value}) is not in [0, {bound})", (), CheckpointError
    ),
    "checkpoint_checksum": Message("{file}: checksum of {what} is {value}, stored is {bound}", (), CheckpointError),
    "checkpoint_changed": Message("{file}: the file was written while it was read; read again", (), CheckpointError),
    "checkpoint_slice": Message("{file}: slice (start, length) {value} is not in shape {bound}", (), CheckpointError),
    "checkpoint_cover": Message("{file}: slices {why} the tensor of shape {bound}", (), CheckpointError),
    "checkpoint_version": Message(
        "{file}: made for readers of version {value}, this one is of version {bound}", (), UnimplementedError
    ),
    "checkpoint_dtype": Message("{file}: dtype {value} is not read here", (), UnimplementedError),
    "checkpoint_elsewhere": Message(
        "{file}: it names {value}, which is outside of its directory; pass that path itself, or follow_links=True",
        (),
        CheckpointError,
    ),
    "checkpoint_memory": Message("{file}: {value} bytes; this machine has {bound}", (), ResourceExhaustedError),
    "checkpoint_no_tensor": Message("{file}: no {value} among {bound} tensors{why}", (), TensorNotFoundError),
    "checkpoint_rows": Message("{file}: rows must be a slice of step 1 of shape {bound}; got {value}"),
    # tables in parts: `file` is a path, with the part of the file that is meant
    "parts_value": Message("{file}: {what} is {value}; must be {bound}", (), ShardError),
    "parts_malformed": Message("{file}: {why}", (), ShardError),
    "parts_missing": Message("{file}: part {value} of {bound} is missing", (), ShardError),
    "parts_no_tensor": Message("{file}: there is no tensor {value}; there are {bound}", (), TensorNotFoundError),
    "parts_differ": Message(
        "{file}: {what} is {value}, elsewhere {bound}; it must be the same in all parts", (), ShardError
    ),
    "parts_rows": Message(
        "{file}: {what} has {value} rows, the table {bound}, and is not the same in all parts; `table` says which"
        " tensor is the table",
        (),
        ShardError,
    ),
    "parts_strategy": Message(
        '{file}: parts of both rules look alike; from_strategy must be "div" or "mod" (on the command line'
        " --from-strategy)",
        (),
        ShardError,
    ),
    "parts_dtype": Message("{file}: {what} has dtype {value}, which {bound} files do not hold", (), UnimplementedError),
    "parts_memory": Message(
        "{file}: a row of {what} has {value} bytes; with this memory it may have {bound}", (), ShardError
    ),
    "parts_same": Message(
        "{argument} must lie elsewhere: it would take the place of what is read", ("target",), ShardError
    ),
    "parts_which": Message("{file}: {argument} must name the tensors to be read; there are {value}", (), ShardError),
    # graphs
    "pin_missing": Message("{argument} is neither wired nor typed in"),
    "attr_unknown": Message("there is no attribute {argument}; there are {bound}"),
    "attr_kind": Message("attribute {argument} must be {bound}; got {value}"),
    "pin_unclear": Message("{argument} is a {value} with several outputs: name one of {bound}"),
    "pin_kind": Message("{argument} takes {bound}; got {value}"),
    "pin_of_other_graph": Message("{argument} comes from another graph: {value}"),
    "not_a_variable": Message("{argument} must be wired to a Variable; got {value}"),
    "name_unfit": Message("a name is letters, digits and _ . \\ / > -; got {value}"),
    "value_unfit": Message("{argument} must be {bound}; got {value}"),
    "initial_value_varies": Message(
        "{argument} must be typed in, or computed from constants and random numbers; {value} needs a run"
    ),
    "fed_not_a_placeholder": Message("only placeholders are fed; {value} is not one"),
    "fed_varies": Message("{argument} must be a value that is known before the run; {value} is computed in it"),
    "not_fed": Message("{value} is not fed, and {bound} needs it"),
    "updated_twice": Message("{value} is updated twice in one run, by {bound}"),
    "unconnected": Message(
        'no gradient flows from outputs to {argument} ({value}); unconnected_gradients="zero" gives zeros'
    ),
    "gradient_of_nothing": Message("{argument} ({value}) is of dtype {bound}, which has no gradient"),
    "fetch_unknown": Message("there is no {argument} in this graph{why}"),
    "engine_unfit": Message("engine {value} cannot be used here: {why}"),
    "engine_unknown": Message("there is no engine {value}; there are {bound}"),
    "rank_unknown": Message(
        "{argument}: its rank must be known here; give the Placeholder a shape (-1 for open sizes)"
    ),
    # elsewhere
    "no_memory": Message("{argument} has no memory: its storage was given away or freed"),
    "storage_too_small": Message(
        "{argument} spans {value} bytes of its storage, which holds {bound}: the storage was resized after the tensor"
        " was made"
    ),
    "checkpoint_lacks": Message("the checkpoint has no {argument}{why}"),
    "checkpoint_slot": Message("the checkpoint has {argument}, which {why} does not have: it is of another optimizer"),
    "checkpoint_rule": Message(
        "{argument} of the checkpoint has shape {value}, but {why} needs {bound}: it is of another optimizer"
    ),
    "checkpoint_unreadable": Message("{file}: cannot be read, so nothing was loaded: {why}", (), CheckpointError),
    "checkpoint_unwritten": Message("{file}: was not written to the end: {why}", (), CheckpointError),
    "checkpoint_groups": Message(
        "the checkpoint has {value} parameter groups of an optimizer, this optimizer has {bound}"
    ),
    "state_layout_missing": Message(
        "the state dict has no {argument}, which says what rows it holds; if a module split like this one saved it, set"
        " that entry to this module's get_extra_state()"
    ),
    "state_layout_unreadable": Message("{argument} must be bytes of JSON in a tensor, got {value}"),
    "state_layout_differs": Message(
        "the state dict holds other rows: {value}; this module holds {bound}; use rowgrad.torch.sharded.checkpoint, or"
        " load_full with the whole table"
    ),
    "optimizer_layout_missing": Message(
        "the state of {argument} has no layout, which says what rows it belongs to; if an optimizer of a module split"
        " like this one saved it, set state_dict['state'][…]['layout'] to the parameter's rowgrad_layout; otherwise use"
        " rowgrad.torch.sharded.checkpoint"
    ),
    "optimizer_layout_unreadable": Message("the layout in the state of {argument} must be JSON text, got {value}"),
    "optimizer_layout_differs": Message(
        "the state of {argument} belongs to other rows: {value}; the parameter holds {bound}; use"
        " rowgrad.torch.sharded.checkpoint, which moves the state with its rows"
    ),
    "mixed_devices": Message("{argument} is on {value}, but an argument before it is on {bound}"),
    "fused_changed": Message(
        "a fused table was changed between forward and backward, so the gradient of per_sample_weights is lost"
    ),
    "plan_unfit": Message("the plan is of {value}, the bags have {bound}", ("plan",)),
    "no_kernel_for_device": Message(
        "{argument} is on {value}; this op has kernels for {bound}", (), UnimplementedError
    ),
    "jit_trace": Message(
        "torch.jit.trace is not supported: it would record sizes as constants; use torch.export or torch.compile",
        (),
        UnimplementedError,
    ),
    "functionalize": Message(
        "torch.func.functionalize is not supported; no op here writes in place, so call it without",
        (),
        UnimplementedError,
    ),
    "forward_mode": Message(
        "forward-mode differentiation is not implemented; use reverse mode (backward, torch.func.vjp, jacrev)",
        (),
        UnimplementedError,
    ),
    "host_traced": Message(
        "{argument} decides a shape, so it must be a number when the call is compiled, not a traced array; "
        "make it an int, or an argument in static_argnums"
    ),
    "size_traced": Message("how many rows come out depends on data, which a compiler does not see; {bound}"),
    "shards_traced": Message("ids that are traced are looked up in one table, not in {value} shards; join them first"),
    "batch_unfit": Message("vmap: {argument} must not differ between the items of a batch here; {bound}"),
    "batch_too_large": Message(
        "vmap: the items' {argument} would be numbers up to {value} in one call, but integers end at {bound}; set"
        " jax_enable_x64, or use jax.lax.map",
        (),
        UnimplementedError,
    ),
    "table_unfit": Message("a Table's {argument} must be {bound}; got {value}"),
    "table_in_parts": Message(
        "the table is split into parts, whose rows are not numbered like ids; use rowgrad.jax.sharded.embedding_bag"
        " inside shard_map",
        ("table",),
        UnimplementedError,
    ),
    "part_without_layout": Message(
        "{argument} must be a ShardedTable, which knows how its rows are split; got {value}; split the table with"
        " shard_table, or state the layout of parts once with ShardedTable(parts, Layout(num_rows, devices, axis,"
        " strategy))"
    ),
    "layout_differs": Message("{argument}: got {value}, but the table was split with {bound}"),
    "table_tapped": Message(
        "inside value_and_rows a table is read by table.bags alone: a gradient by rows is that of lookups, and the"
        " gradient of anything else would be lost; use jax.value_and_grad, whose gradients are whole tables. Functions"
        " under jit, vmap, grad, scan, cond or checkpoint take no table there either: pass them what was looked up"
    ),
    "table_sharded": Message(
        "the {value} of a table are sharded over {bound} under jit, so every device would gather the whole table; split"
        " its rows with rowgrad.jax.sharded.shard_table and look it up with rowgrad.jax.sharded.embedding_bag inside"
        " shard_map, or replicate it",
        ("data", "params", "table"),
    ),
    "mesh_unknown": Message(
        "{argument}: the mesh of sharded operands is unknown here; call it inside shard_map", (), UnimplementedError
    ),
    "table_lost": Message(
        "value_and_rows: a Table was taken apart, so its array is a plain parameter and would get a dense gradient;"
        " pass a tree that holds the Table itself (in flax.nnx: nnx.Param(Table(…)), or the module for its state), or"
        " look the array up with rowgrad.jax.embedding_bag for a dense gradient"
    ),
    "rows_unchecked": Message(
        "value_and_rows: JAX does not track here which arrays differ over {value}, so every device would update a table"
        " that all of them share by its own rows alone; use shard_map without check_vma=False, jax.value_and_grad with"
        " jax.lax.psum, or a table split by rowgrad.jax.sharded",
        ("table",),
        UnimplementedError,
    ),
    "lookup_unfit": Message(
        "inside value_and_rows a lookup takes no {argument}: its gradient by rows is that of its ids"
    ),
    "lookups_differ": Message(
        "value_and_rows: the function looked up other tables, or otherwise, when it was traced again; it must do the"
        " same every time"
    ),
    "module_changed": Message(
        "value_and_rows: the function removed {value} from the module; keep all Variables of a module"
    ),
    "lookup_inside": Message(
        "value_and_rows: a table is looked up within jit, vmap, grad, scan, cond or checkpoint inside of the function,"
        " from where its ids cannot come out; look it up outside of them"
    ),
    "rows_exported": Message(
        "jax.export cannot serialize a program that takes or returns row gradients; let it take and return their values"
        " and indices, and make an IndexedRows of them outside",
        (),
        UnimplementedError,
    ),
    "rows_changed": Message("the ids of a row gradient must be integers; got {value}", ("updates",)),
    "rows_arithmetic": Message(
        "a row gradient is not an array: scale, add, clip and sum it with rowgrad.jax.rows, apply optax transformations"
        " with rowgrad.jax.rows.on_rows, or make it dense with rowgrad.jax.rows.to_dense (NumPy: rowgrad.densify)",
        (),
        RowArithmeticError,
    ),
    "row_ids_arithmetic": Message(
        "{what} is not defined for the row ids of a gradient, which functions of arrays would change together"
        " with its values; use rowgrad.jax.rows.{function} on the whole gradient, apply optax transformations with"
        " rowgrad.jax.rows.on_rows, or make the gradient dense with rowgrad.jax.rows.to_dense",
        (),
        RowArithmeticError,
    ),
    "rows_shapes": Message("row gradients that are added must have one shape; got {value} and {bound}"),
    "transformation_unfit": Message(
        "on_rows cannot apply {value} to row gradients: {why}; use the optimizers of rowgrad.jax.optim for tables, and"
        " optax.multi_transform to apply it to other parameters",
        ("transformation",),
    ),
    "gradient_complex": Message(
        "optimizers of rowgrad.jax take gradients of real numbers; got {value}; use optax.multi_transform to"
        " train such parameters in another way",
        ("updates",),
    ),
    "rows_stacked": Message(
        "the ids of a row gradient must have rank 1; got rank {value}; sum a stack of row gradients with"
        " rowgrad.jax.rows.accumulate",
        ("updates",),
    ),
    "rows_not_stacked": Message(
        "accumulate takes row gradients stacked along a leading axis; got ids of rank {value}",
        ("stacked",),
    ),
    "update_unfit": Message(
        "a gradient or an update must have the shape of its parameter, {bound}; got {value}", ("updates",)
    ),
    "update_dtype": Message(
        "an update of {value} cannot be added to a parameter of {bound} without losing a part of it", ("updates",)
    ),
    "parameter_unfit": Message(
        "a gradient of {value} was given for a parameter that is not a floating-point array: its gradient must be None",
        ("updates",),
    ),
    "state_unfit": Message(
        "the state must be what init of this optimizer ({value}) returned for these parameters, with {why}", ("state",)
    ),
    "needs_params": Message("{value} decays weights: update must be given params", ("params",)),
    "no_runner": Message("no runner for {value}; {bound}", (), UnimplementedError),
    "mixed_runners": Message("arguments of one call must belong together; got {value} and {bound}"),
}


def shape_text(shape: tuple[int | None, ...]) -> str:
    """TensorFlow's way to print a shape: [2,3], unknown dimensions as ?."""
    return "[" + ",".join("?" if d is None else str(d) for d in shape) + "]"


def make_error(key: str, has: tuple[str, ...] = (), **facts: Any) -> OpError:
    """Word a fault. `has` are the op's argument names; facts fill the text and stay on the error."""
    words = MESSAGES[key]
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
