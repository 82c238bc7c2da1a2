"""The table of all error messages: TensorFlow's, letter by letter, and our own.

`errors.make_error` looks a key up here and fills in the facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter
from typing import Literal, NamedTuple

Kind = Literal[
    "InvalidArgumentError",
    "RowArithmeticError",
    "NotFoundError",
    "InternalError",
    "UnimplementedError",
    "ResourceExhaustedError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "TensorNotFoundError",
    "ShardError",
]


def mentioned(message: str, facts: Mapping[str, str]) -> set[str]:
    """Return the facts whose text occurs as a word in the message."""
    return {k for k, fact in facts.items() if re.search(rf"(?<![\w.]){re.escape(fact)}(?!\w)", message)}


class Message(NamedTuple):
    """The message for one key.

    Attributes:
        text: a template over the facts that `make_error` receives.
        arguments: the arguments the problem may be in; the error names the first one that the op has.
        kind: the class of the error, by its name in `errors`.
        states: facts that the text states without a placeholder.
        detail: a template over `place`, `value` and `bound` for what `str(error)` adds where the text leaves out facts;
            by default "got place = value, limit bound", as far as the text leaves them out.
        advice: a sentence that says what to do, which `str(error)` adds; for TensorFlow's texts, which must not change.
    """

    text: str
    arguments: tuple[str, ...] = ()
    kind: Kind = "InvalidArgumentError"
    states: tuple[str, ...] = ()
    detail: str = ""
    advice: str = ""

    def stated(self, message: str, facts: Mapping[str, str]) -> set[str]:
        """Return the facts that the message, which is `text` with its facts filled in, states."""
        fields = {field for _, field, _, _ in Formatter().parse(self.text) if field}
        return {*fields, *self.states, *(mentioned(message, facts) & {"argument", "bound"})}


_SIZE = ("output_dim0", "dense_output_dim0")
_ROWS = ("value_rowids", "indices")

# TensorFlow's own messages, letter by letter, spelling mistakes included. Kernels report some of these keys (status.h).
TENSORFLOW_MESSAGES: dict[str, Message] = {
    # segment ids and ids, which kernels check
    "last_segment_too_big": Message("Last segment id must be < kintmax, got {value} limit {bound}", ("segment_ids",)),
    "segment_negative": Message(
        "segment ids must be >= 0", ("segment_ids",), advice="A segment id is the number of a row of the result."
    ),
    "num_segments_too_small": Message(
        "segment ids must be < num_segments",
        ("segment_ids",),
        detail="got {place} = {value}, num_segments = {bound}",
        advice="num_segments is the number of rows of the result: pass more than the largest segment id, and at most"
        " 2147483647.",
    ),
    "num_segments_negative": Message(
        "segment ids must be >= 0",
        ("num_segments",),
        advice="num_segments is the number of rows of the result: pass 0 or more.",
    ),
    "last_segment_overflows": Message("Expected a non-negative size, got {bound}", ("segment_ids",)),
    "segments_not_increasing": Message(
        "segment ids are not increasing",
        ("segment_ids",),
        detail="got {place} = {value} after {bound}",
        advice="Sort ids and segment ids together by segment, with np.argsort(segment_ids, kind='stable').",
    ),
    "segment_not_in_output": Message(
        "Segment id {value} out of range [0, {bound}), possibly because 'segment_ids' input is not sorted.",
        ("segment_ids",),
    ),
    "segment_not_in_grad": Message("Segment id {value} out of range [0, {bound}).", ("segment_ids",)),
    "segment_count": Message(
        "Invalid number of segments", ("segment_ids",), detail="got {place} = {value} for {bound} rows of grad"
    ),
    "index_not_in_data": Message("Bad: indices[{position}] == {value} out of range [0, {bound})", ("indices",)),
    "index_not_in_params": Message("indices[{position}] = {value} is not in [0, {bound})", ("indices",)),
    "index_not_in_output": Message("Index {value} out of range [0, {bound}).", ("indices",)),
    "row_not_in_shape": Message("indices({position}, 0) is invalid: {value} >= {bound}", _ROWS),
    "reverse_index_not_in_grad": Message(
        "Elements in reverse index must be in [0, {bound}) but got {value}", ("reverse_index_map",)
    ),
    "slice_left_over": Message(
        "Elements of backprop_val_grad aren't all propagated. Num elements:{bound}, used: {value}",
        ("output_indices",),
        "InternalError",
    ),
    # sizes
    "size_negative": Message("Expected a non-negative size, got {value}", (*_SIZE, "size"), states=("bound",)),
    "dimension_negative": Message(
        "Expected shape dimensions to be non-negative, got {value}",
        ("dense_shape", "nrows", "shape"),
        states=("bound",),
    ),
    "no_rows_for_values": Message(
        "Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = {value}", _ROWS
    ),
    "elements_overflow": Message("Encountered overflow when multiplying {value} with {bound}, result: {result}"),
    "shape_overflow": Message("Shape {shape} results in overflow when computing number of elements"),
    "out_of_memory_output": Message(
        "OOM when allocating tensor with shape{shape} and type {dtype} on "
        "/job:localhost/replica:0/task:0/device:CPU:0 by allocator mklcpu",
        (),
        "ResourceExhaustedError",
        detail="needs {value}, this machine has {bound}",
    ),
    # SparseSegment ops
    "should_be_vector": Message("{argument} should be a vector."),
    "ids_should_be_vector": Message(
        "{argument} should be a vector.",
        advice="For a matrix of ids, one bag in each row, pass ids.reshape(-1) and"
        " segment_ids=np.repeat(np.arange(rows), columns).",
    ),
    "gathered_should_be_vector": Message(
        "{argument} should be a vector.",
        advice="For a matrix of ids, pass ids.reshape(-1) and reshape the result to (*ids.shape, …).",
    ),
    "should_be_scalar": Message("{argument} should be a scalar."),
    "should_be_scalar_not": Message("{argument} should be a scalar, not shape {shape}"),
    "segments_match_indices": Message(
        "segment_ids and indices should have same size.",
        ("segment_ids",),
        detail="got {value} segment ids for {bound} ids",
    ),
    "segments_match_data": Message(
        "segment_ids should be the same size as dimension 0 of input.",
        ("segment_ids",),
        detail="got {value} segment ids for {bound} rows",
    ),
    "weights_match": Message("weights and indices should have same size, got {value} and {bound}", ("weights",)),
    "segments_match_weights": Message(
        "weights and segment_ids should have same size, got {value} and {bound}", ("weights",)
    ),
    "data_rank": Message("Shape must be at least rank 1", ("data", "params")),
    "input_rank": Message("input must be at least rank 1", ("data",)),
    "grad_rank": Message("Index must be less than 0, got 0", ("grad",)),
    # FillEmptyRows ops
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
    # SparseSlice
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
    # SparseAdd
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
    # attributes, lookups and dense ops
    "attr_dtype": Message("Value for attr '{attr}' of {value} is not in the list of allowed values: {bound}"),
    "combiner_unknown": Message("{argument} must be one of {bound}; got {value}"),
    "shard_not_there": Message("partitions[{position}] = {value} is not in [0, {bound})", ("sp_ids", "sparse_ids")),
    "fewer_rows_than_shards": Message(
        "Integer division by zero",
        ("params", "embedding_weights"),
        detail="got {place} with {value} rows for {bound} shards",
    ),
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
    "one_hot_axis": Message("Expected axis to be -1 or between [0, {bound}).  But received: {value}", ("axis",)),
    "division_by_zero": Message("Integer division by zero: {argument}[{position}] = 0", states=("value",)),
    "negative_power": Message("Integers to negative integer powers are not allowed: {argument}[{position}] = {value}"),
    "scalar_to_matrix": Message("{argument} should be a scalar, vector, or matrix, got shape {shape}"),
    "sparse_dims": Message("{argument} has incorrect number of elements: {value} should be: {bound}"),
    "sparse_values_shape": Message("{argument} has incorrect shape {value}, should be [] or [{bound}]"),
    "rank_1_shape": Message("{argument} must be rank 1, got shape {shape}"),
    "index_out_of_bounds": Message(
        "indices[{position}] = [{value}] is out of bounds: need 0 <= index < [{bound}]", ("sparse_indices",)
    ),
    "index_disordered": Message(
        "indices[{position}] = [{value}] is out of order. Many sparse ops require sorted indices.\n    Use "
        "`tf.sparse.reorder` to create a correctly ordered copy.",
        ("sparse_indices",),
    ),
    "index_repeated": Message("indices[{position}] = [{value}] is repeated", ("sparse_indices",)),
    "windows_negative": Message("Computed output size would be negative: {value} [{bound}]", ("padding",)),
}

# Messages for what TensorFlow does not check or does not have. The first sentence says what is wrong, with the value
# and the bound. Where the remedy is not obvious, a second sentence says what to do; only then there are full stops.
OWN_MESSAGES: dict[str, Message] = {
    # memory
    "out_of_memory": Message(
        "OOM when allocating workspace for {value} elements; this machine has {bound} bytes",
        (),
        "ResourceExhaustedError",
    ),
    "out_of_memory_between": Message("OOM when allocating an intermediate result", (), "ResourceExhaustedError"),
    "argument_memory": Message(
        "OOM: making {argument} contiguous needs {value} bytes, which are not available", (), "ResourceExhaustedError"
    ),
    "session_memory": Message(
        "OOM: the values need {value} bytes, but only {why} of the session's {bound} bytes are left",
        (),
        "ResourceExhaustedError",
    ),
    "page_nodes": Message(
        "the page needs more than {bound} nodes; gradients of gradients multiply them", (), "ResourceExhaustedError"
    ),
    # ids, offsets and features, which kernels check
    "num_segments_too_big": Message("num_segments must be at most {bound}, got {value}", ("num_segments",)),
    "id_not_listed": Message("ids[{position}] = {value} is not one of the {bound} sorted_ids", ("ids",)),
    "offsets_begin": Message("offsets[0] must be 0, got {value}", ("offsets",), states=("position", "bound")),
    "offsets_fall": Message(
        "offsets must not decrease, but offsets[{position}] = {value} follows {bound}", ("offsets",)
    ),
    "offsets_end": Message(
        "offsets must end with the number of ids, {bound}, got {value}",
        ("offsets",),
        states=("position",),
        advice="Each offset is the position where a bag begins; without include_last_offset, the end is added.",
    ),
    "offsets_missing": Message(
        "a vector of ids needs offsets or segment_ids, got neither. Pass offsets (where each bag begins) or segment_ids"
        " (the bag of each id), or a matrix of ids with one bag in each row.",
        ("offsets",),
    ),
    "offsets_and_segments": Message(
        "offsets and segment_ids both say where bags begin. Pass one of them.", ("offsets",)
    ),
    "bags_twice": Message(
        "{argument} must be None, because {value} defines its own bags. Drop {argument}, or pass a vector of ids."
    ),
    "weights_scalar": Message(
        "per_sample_weights must have shape {bound}, one weight for each id, got a scalar. For one weight for all ids,"
        " multiply the result by it.",
        ("per_sample_weights",),
    ),
    "ids_rank": Message(
        "ids must have 1 or 2 dimensions, got {value}",
        ("ids",),
        advice="For bags along the last of more dimensions, pass ids.reshape(-1, ids.shape[-1]); for one id,"
        " ids.reshape(1).",
    ),
    "offsets_of_open_features": Message(
        "the length of offsets must be a multiple of the {bound} features, got {value}", ("offsets",)
    ),
    "offsets_of_features": Message(
        "the length of offsets must be a multiple of the {bound} features plus one, got {value}", ("offsets",)
    ),
    "offsets_with_end": Message(
        "include_last_offset is missing. Construct the module with include_last_offset=False if each offset is the"
        " start of a bag, as in torch.nn.EmbeddingBag, or with True if the number of ids follows them, as in TorchRec"
        " and FBGEMM.",
        ("offsets",),
        states=("argument",),
    ),
    "feature_negative": Message(
        "feature_first and feature_rows of feature {position} must be >= 0, got {value}",
        ("feature_rows",),
        states=("bound",),
    ),
    "feature_too_far": Message(
        "feature_first[{position}] must be at most {bound} for this dtype of indices, got {value}", ("feature_first",)
    ),
    "id_not_in_feature": Message(
        "indices[{position}] = {value} is not in [0, {bound}), the rows of its feature's table", ("indices",)
    ),
    "id_not_in_table": Message(
        "feature {feature}: indices[{position}] = {value} is not in [0, {bound}), the rows of table {table}",
        ("indices",),
    ),
    "rows_exceed_size": Message("size must be at least the number of looked-up rows, {value}, got {bound}", ("size",)),
    "row_ids": Message(
        "row_ids must be strictly increasing and in [0, {bound}), got row_ids[{position}] = {value}", ("row_ids",)
    ),
    # plans
    "plan_segments_not_in_grad": Message("the plan has {value} segments, but grad has only {bound} rows", ("grad",)),
    "plan_rows": Message(
        "a plan's rows must be increasing and in [0, {bound}), got rows[{position}] = {value}", ("rows",)
    ),
    "plan_starts": Message(
        "a plan's starts must increase from 0 and be in [0, {bound}), got starts[{position}] = {value}", ("starts",)
    ),
    "plan_segments": Message(
        "a plan's segments must be in [0, {bound}), the length of counts, got segments[{position}] = {value}",
        ("segments",),
    ),
    "plan_positions": Message(
        "a plan's positions must contain each number in [0, {bound}) once, increasing within a row, got"
        " positions[{position}] = {value}",
        ("positions",),
    ),
    "plan_counts": Message("counts[{position}] = {value}, but segment {position} has {bound} ids", ("counts",)),
    "plan_num_rows": Message("the plan is for a table of {value} rows, but this table has {bound}", ("plan",)),
    "plan_of_other_table": Message(
        "the plan is for a table of {value} rows, but data has {bound}", ("num_rows",), states=("argument",)
    ),
    "plan_of_other_ids": Message(
        "a plan describes the ids as they are looked up, so it cannot be combined with {bound}", ("plan",)
    ),
    "plan_beside_ids": Message(
        "a plan replaces indices and segment_ids, and may describe other ids. Pass None for them.", ("plan",)
    ),
    "plan_unfit": Message("the plan has {value}, but the bags have {bound}", ("plan",)),
    "not_a_plan": Message("plan must be a rowgrad.Plan, got {value}", ("plan",)),
    # shapes
    "fill_is_a_row": Message("fill_id must be at least {bound}, the number of rows, got {value}", ("fill_id",)),
    "rows_match": Message("{argument} must have rows of shape {bound}, got {value}"),
    "lengths_match": Message("{argument} must have length {bound}, got {value}"),
    "elements_match": Message("{argument} must have as many elements as shape {bound}, got {value}"),
    "same_shape": Message("{argument} must have shape {bound}, got {value}"),
    "not_broadcast": Message("{argument} of shape {value} does not broadcast with {bound}"),
    "rank_at_most": Message("{argument} must have at most {bound} dimensions, got {value}"),
    "rank_at_least": Message("{argument} must have at least {bound} dimensions, got shape {value}"),
    "rank_exactly": Message("{argument} must have {bound} dimensions, got shape {value}"),
    "rank_unknown": Message(
        "the rank of {argument} must be known. Give the Placeholder a shape, with -1 for unknown sizes."
    ),
    # dtypes, arrays and attributes
    "dtype_not_allowed": Message("{argument} must be one of {bound}; got {value}"),
    "dtype_without_kernel": Message(
        "{argument} must be one of {bound}; got {value}, which has no kernel", (), "NotFoundError"
    ),
    "dtype_expected": Message("{argument} must be {bound}{why}; got {value}"),
    "number_does_not_fit": Message("{argument} must contain numbers in the range of {bound}; got {value}"),
    "integer_does_not_fit": Message("{argument} must contain values of {bound}; got {value}"),
    "list_uneven": Message(
        "{argument} is a list of lists of different lengths. Make them equal, or for bags of ids pass all ids in one"
        " list, and the bag of each id in segment_ids."
    ),
    "not_a_tensor": Message("{argument} must be a tensor; got {value}"),
    "not_an_array": Message("{argument} must be an array; got {value}"),
    "list_expected": Message("{argument} must be a list of at least one array; got {value}"),
    "argument_changed": Message(
        "an argument changed its shape, dtype or memory layout during the call; arrays must not change while an op "
        "reads them"
    ),
    "option_unknown": Message("{argument} must be one of {bound}; got {value}"),
    "attr_not_allowed": Message("attribute {argument} must be one of {bound}; got {value}"),
    "attr_kind": Message("attribute {argument} must be {bound}; got {value}"),
    "attr_unknown": Message("there is no attribute {argument}; available: {bound}"),
    # dense ops
    "axis_outside": Message(
        "{argument}[{position}] = {value} is not in [-{bound}, {bound}), the dimensions of the input"
    ),
    "axis_twice": Message("{argument} contains dimension {value} twice"),
    "axis_unknown": Message(
        "the number of dimensions in {argument} must be known, because it determines the rank of the result. Enter its"
        " value, or wire a Const."
    ),
    "axis_empty": Message(
        "{argument} = {value} is a dimension of size 0 in shape {bound}, which has no largest element"
    ),
    "index_outside": Message("{argument} = {value} is not in [-{bound}, {bound})"),
    "channels_match": Message("{argument} must have {bound} input channels, as the images have; got {value}"),
    "inner_sizes": Message("{argument} must have an inner dimension of {bound}, as a has; got {value}"),
    "two_unknown": Message("{argument} may contain -1 only once, got {value}"),
    "not_one": Message("{argument} can drop only dimensions of size 1, but dimension {position} has size {value}"),
    "squeeze_unknown": Message(
        "axis must list the dimensions to drop, because some sizes of {value} are unknown", ("axis",)
    ),
    "not_a_permutation": Message("{argument} must contain each number in [0, {bound}) once, got {value}"),
    "slice_outside": Message(
        "the slice must be inside dimension {position} of size {bound}, got {argument}[{position}] = {value}"
    ),
    "out_type_too_narrow": Message("{argument} has a size of {value}, which out_type {bound} cannot represent"),
    "range_endless": Message("delta must not be 0", ("delta",), states=("value",)),
    "range_backwards": Message(
        "start = {value} never reaches limit = {bound} in steps of delta = {result}", ("delta",)
    ),
    # sparse tensors and lookups
    "string_missing": Message("{argument} must contain only strings, because the values are strings; got {value}"),
    "string_repeated": Message("indices[{position}] repeats an earlier entry, and strings cannot be summed"),
    "entry_outside": Message("indices[{position}, {column}] = {value} is not in [0, {bound})"),
    "shards_disagree": Message("{argument} must have rows of {bound}; got {value}"),
    "row_outside": Message("{argument} = {value} is not a row of a table of {bound} rows"),
    # bags and modules
    "bags_unfit": Message("{argument}: got {value}, expected {bound}"),
    "ids_of_sample": Message("sample {position}: {argument} must contain integers; got dtype {value}"),
    "sample_unfit": Message("sample {position}: {argument} must be {bound}; got {value}"),
    "id_of_sample": Message("sample {position}: {argument} contains {value}, which is not in [0, {bound})"),
    "feature_unfit": Message("feature {argument}: {value}"),
    "in_feature": Message("feature {feature}: {text}", states=("argument", "position", "value", "bound")),
    "max_unfit": Message("mode 'max' does not support {value}"),
    "max_sparse": Message("mode 'max' does not support sparse=True. Use grad='rows' for row-sparse gradients."),
    "max_weights": Message("mode 'max' does not support per_sample_weights", (), "UnimplementedError"),
    "frequency_rows": Message(
        "scale_grad_by_freq does not support row-sparse gradients. Use sparse=False and grad='dense'."
    ),
    "fused_unfit": Message("a fused table does not support {value}. Use fused=False."),
    "fused_no_optimizer": Message(
        "a fused table needs a rowgrad optimizer, but none has its parameters. Create one with them."
    ),
    "fused_overwritten": Message(
        "the ids, weights or bag gradients of a fused table were overwritten in place between backward and step()."
        " Overwrite them after step(), or use fused=False."
    ),
    "fused_changed": Message(
        "a fused table was changed between forward and backward, so the gradient of per_sample_weights cannot be"
        " computed"
    ),
    "rows_in_ddp": Message(
        "this table has row gradients, which DistributedDataParallel cannot reduce. Call"
        " rowgrad.torch.replicate_rows(model) before you wrap the model, or use grad='dense'."
    ),
    "rows_in_fsdp": Message(
        "this table has row gradients or is fused, which FSDP cannot shard. Call rowgrad.torch.replicate_rows(model)"
        " and pass its tables to FSDP as ignored_params (fully_shard) or ignored_states, or use grad='dense'."
    ),
    "replicated_unfit": Message(
        "a table of rowgrad.torch.replicate_rows does not support {value}. Do without it, or use grad='dense'."
    ),
    "replicated_reduced": Message(
        "{value} is a table of rowgrad.torch.replicate_rows, but DistributedDataParallel reduces it too. Pass the model"
        " that you wrap to replicate_rows."
    ),
    "replicated_group": Message(
        "the process group of DistributedDataParallel is {value}, but that of rowgrad.torch.replicate_rows is {bound}."
        " Pass the same process_group to both."
    ),
    "replicated_foreign": Message(
        "{value} got a gradient from an operation other than a rowgrad lookup, or from a compiled one, so it would"
        " differ between ranks. Use rowgrad's lookups outside of torch.compile, or fused=True, or grad='dense'."
    ),
    # partition and stitch
    "id_outside": Message("{argument}[{position}] = {value} is not in [0, {bound}), the rows of the table"),
    "id_negative": Message("{argument}[{position}] must be >= 0, got {value}", states=("bound",)),
    "fewer_rows_than_parts": Message(
        '"div" partitioning cannot place {value} rows into {bound} shards, because {value} // {bound} = 0'
    ),
    "div_needs_rows": Message('{argument} is required, because it determines where "div" partitioning starts a shard'),
    "count_unfit": Message("{argument} must be an integer of at least {bound}; got {value}"),
    "part_outside": Message("{argument}[{position}] = {value} is not in [0, {bound}), the shards"),
    "row_not_in_part": Message("{argument}[{position}] = {value} is not in [0, {bound}), the rows of its shard"),
    "stitch_parts": Message("{argument} must contain one array for each of {bound} shards; got {value}"),
    # optimizer updates
    "number_unfit": Message("{argument} must be {bound}; got {value}"),
    "slot_count": Message("slots must be {bound}; got {value}", ("slots",)),
    "updated_unfit": Message("{argument} is updated in place and must be {bound}; got {value}"),
    "updated_overlaps": Message("{argument} is updated in place, but shares memory with {value}"),
    "not_here": Message("{argument} must be {bound}; got {value}", (), "UnimplementedError"),
    "option_unfit": Message("{argument}={value} is not supported: {bound}", (), "UnimplementedError"),
    "step_captured": Message(
        "this step does not support {value}: {bound} depends on the number of steps, which replays do not count. Pass"
        " capturable=True, which counts them on the device.",
        (),
        "UnimplementedError",
    ),
    "step_first_captured": Message(
        "the first step of a parameter cannot be captured: every replay would create its state again. Run one step"
        " before the capture.",
        (),
        "UnimplementedError",
    ),
    "clamp_moves_zero": Message(
        "clamping to {value} would change rows that the gradient does not store, which are zeros. Use bounds on both"
        " sides of 0, or grad.to_dense().",
        (),
        "UnimplementedError",
    ),
    # out=
    "out_unfit": Message("out for {argument} must be {bound}; got {value}"),
    "out_overlaps": Message("out for {argument} shares memory with {value}"),
    "out_count": Message("out must contain {bound} arrays, got {value}"),
    # checkpoint files: `file` is a path, followed by the part of the file
    "checkpoint_not_there": Message("{file}: no such file", (), "CheckpointNotFoundError"),
    "checkpoint_format": Message(
        "{file}: this is {value}, not a checkpoint. Save one with tf.train.Checkpoint(model=model).write(path), or read"
        " the arrays with the library of that format (.keras, .h5: h5py).",
        (),
        "CheckpointError",
    ),
    "checkpoint_data_file": Message(
        "{file}: this file holds the bytes of a checkpoint. Pass {value}, the name without the ending.",
        (),
        "CheckpointError",
    ),
    "checkpoint_several": Message(
        "{file}: the folder has {value} checkpoints and no file that names the latest. Pass one of {bound}.",
        (),
        "CheckpointError",
    ),
    "checkpoint_state": Message('{file}: there is no line model_checkpoint_path: "…"', (), "CheckpointError"),
    "checkpoint_malformed": Message("{file}: malformed at byte {position}: {why}", (), "CheckpointError"),
    "checkpoint_value": Message("{file}: {what} is {value}, but must be {bound}", (), "CheckpointError"),
    "checkpoint_outside": Message(
        "{file}: {what} is at bytes [{begin}, {value}), which is not in [0, {bound})", (), "CheckpointError"
    ),
    "checkpoint_checksum": Message(
        "{file}: the checksum of {what} is {value}, but the stored checksum is {bound}", (), "CheckpointError"
    ),
    "checkpoint_changed": Message("{file}: the file changed while it was read. Read it again.", (), "CheckpointError"),
    "checkpoint_slice": Message(
        "{file}: the slice (start, length) {value} is not in shape {bound}", (), "CheckpointError"
    ),
    "checkpoint_cover": Message(
        "{file}: slices {why} the tensor of shape {bound}", (), "CheckpointError", states=("value",)
    ),
    "checkpoint_version": Message(
        "{file}: the file needs a reader of version {value}, but this reader is of version {bound}",
        (),
        "UnimplementedError",
    ),
    "checkpoint_dtype": Message("{file}: dtype {value} is not supported", (), "UnimplementedError"),
    "checkpoint_elsewhere": Message(
        "{file}: the file refers to {value}, which is outside its directory. Pass that path, or follow_links=True.",
        (),
        "CheckpointError",
    ),
    "checkpoint_memory": Message(
        "{file}: reading it needs {value} bytes, but this machine has {bound}", (), "ResourceExhaustedError"
    ),
    "checkpoint_no_tensor": Message(
        "{file}: there is no {value} among {bound} tensors{why}", (), "TensorNotFoundError"
    ),
    "checkpoint_rows": Message("{file}: rows must be a slice with step 1 in shape {bound}; got {value}"),
    # shard files: `file` is a path, followed by the part of the file
    "parts_value": Message("{file}: {what} is {value}, but must be {bound}", (), "ShardError"),
    "parts_malformed": Message("{file}: {why}", (), "ShardError"),
    "parts_missing": Message("{file}: shard {value} of {bound} is missing", (), "ShardError"),
    "parts_no_tensor": Message("{file}: there is no tensor {value}; available: {bound}", (), "TensorNotFoundError"),
    "parts_differ": Message(
        "{file}: {what} must be the same in all shards; got {value} here and {bound} elsewhere", (), "ShardError"
    ),
    "parts_rows": Message(
        "{file}: {what} has {value} rows, the table has {bound}, and it is not the same in all shards. Pass table= to"
        " name the tensor that is the table.",
        (),
        "ShardError",
    ),
    "parts_strategy": Message(
        '{file}: the shards fit both "div" and "mod" partitioning. Pass from_strategy= (on the command line'
        " --from-strategy).",
        (),
        "ShardError",
    ),
    "parts_dtype": Message(
        "{file}: {what} has dtype {value}, which {bound} files cannot store", (), "UnimplementedError"
    ),
    "parts_memory": Message(
        "{file}: a row of {what} has {value} bytes, but the memory limit allows {bound}", (), "ShardError"
    ),
    "parts_same": Message(
        "{argument} must be outside the source, because writing it would overwrite files that are read",
        ("target",),
        "ShardError",
    ),
    "parts_which": Message("{file}: {argument} must name the tensors to read; available: {value}", (), "ShardError"),
    # graphs
    "pin_missing": Message("{argument} is missing: wire it, or enter a value"),
    "pin_unwired": Message("{argument} is missing: wire it to {bound}"),
    "pin_unclear": Message("{argument} is a {value} with several outputs. Choose one of {bound}."),
    "pin_kind": Message("{argument} takes {bound}; got {value}"),
    "pin_of_other_graph": Message("{argument} comes from another graph: {value}"),
    "not_a_variable": Message("{argument} must be wired to a Variable; got {value}"),
    "name_unfit": Message(
        "a name may contain letters, digits and _ . \\ / > - only, got {value}", states=("argument", "bound")
    ),
    "value_unfit": Message("{argument} must be {bound}; got {value}"),
    "initial_value_varies": Message(
        "{argument} must be entered, or computed from constants and random numbers, but {value} is known only in a run"
    ),
    "fed_not_a_placeholder": Message("only placeholders can be fed, and {value} is not one"),
    "fed_twice": Message("{value} is fed twice"),
    "fed_varies": Message("{argument} must be known before the run, but {value} is computed in it"),
    "not_fed": Message("{value} is not fed, but {bound} needs it", states=("argument",)),
    "updated_twice": Message("{value} is updated twice in one run, by {bound}"),
    "unconnected": Message(
        'no gradient flows from outputs to {argument} ({value}). Pass unconnected_gradients="zero" to get zeros.'
    ),
    "gradient_of_nothing": Message("{argument} ({value}) has dtype {bound}, which has no gradient"),
    "fetch_unknown": Message("there is no {argument} in this graph{why}"),
    "engine_unfit": Message("engine {value} is not available: {why}", states=("argument",)),
    "engine_unknown": Message("there is no engine {value}; available: {bound}", states=("argument",)),
    # torch
    "no_memory": Message("{argument} has no memory: its storage was freed or donated"),
    "storage_too_small": Message(
        "{argument} spans {value} bytes, but its storage holds {bound}: the storage was resized after the tensor was"
        " created"
    ),
    "checkpoint_lacks": Message("the checkpoint has no {argument}{why}"),
    "checkpoint_slot": Message("the checkpoint has {argument}, which {why} does not have: it is for another optimizer"),
    "checkpoint_rule": Message(
        "{argument} of the checkpoint has shape {value}, but {why} needs {bound}: it is for another optimizer"
    ),
    "checkpoint_unreadable": Message(
        "{file}: the checkpoint cannot be read, so nothing was loaded: {why}", (), "CheckpointError"
    ),
    "checkpoint_unwritten": Message("{file}: the checkpoint was not written completely: {why}", (), "CheckpointError"),
    "checkpoint_groups": Message("the checkpoint has {value} parameter groups, but this optimizer has {bound}"),
    "state_layout_missing": Message(
        "the state dict has no {argument}, which describes the rows it holds. If a module sharded like this one saved"
        " it, set that entry to this module's get_extra_state()."
    ),
    "state_layout_unreadable": Message("{argument} must be JSON bytes in a tensor, got {value}"),
    "state_layout_differs": Message(
        "the state dict holds other rows than this module: {value} instead of {bound}. Use"
        " rowgrad.torch.sharded.checkpoint, or load_full with the whole table."
    ),
    "optimizer_layout_missing": Message(
        "the state of {argument} has no layout to compare with {bound}. If an optimizer of a module sharded like this"
        " one saved it, set state_dict['state'][…]['layout'] to the parameter's rowgrad_layout; otherwise use"
        " rowgrad.torch.sharded.checkpoint."
    ),
    "optimizer_layout_unreadable": Message("the layout in the state of {argument} must be JSON text, got {value}"),
    "optimizer_layout_differs": Message(
        "the state of {argument} belongs to other rows than the parameter: {value} instead of {bound}. Use"
        " rowgrad.torch.sharded.checkpoint, which moves the state along with its rows."
    ),
    "mixed_devices": Message("{argument} is on {value}, but {other} is on {bound}. Move one of them with .to(device)."),
    "no_kernel_for_device": Message(
        "{argument} is on {value}, but this op has kernels for {bound} only", (), "UnimplementedError"
    ),
    "jit_trace": Message(
        "torch.jit.trace is not supported, because it would record sizes as constants. Use torch.export or"
        " torch.compile.",
        (),
        "UnimplementedError",
    ),
    "functionalize": Message(
        "torch.func.functionalize is not supported. No op writes in place, so call it without.",
        (),
        "UnimplementedError",
    ),
    # tracing and vmap
    "host_traced": Message(
        "{argument} determines a shape, so it must be a number when the call is compiled, not a traced array. Pass an"
        " int, or make it an argument in static_argnums."
    ),
    "size_traced": Message(
        "the number of output rows depends on data, which a compiler cannot see: {bound}", states=("argument",)
    ),
    "shards_traced": Message(
        "traced ids can be looked up in one table, but not in {value} shards. Concatenate the shards first."
    ),
    "batch_unfit": Message("vmap: {argument} must be the same for all items of the batch: {bound}"),
    "batch_too_large": Message(
        "vmap: {argument} of all items in one call need integers up to {value}, but the largest is {bound}. Set"
        " jax_enable_x64, or use jax.lax.map.",
        (),
        "UnimplementedError",
    ),
    # JAX
    "table_unfit": Message("a Table's {argument} must be {bound}; got {value}"),
    "table_in_parts": Message(
        "the table is sharded, so its rows are not in the order of ids. Use rowgrad.jax.sharded.embedding_bag inside"
        " shard_map.",
        ("table",),
        "UnimplementedError",
        states=("argument",),
    ),
    "part_without_layout": Message(
        "{argument} must be a ShardedTable, which records how its rows are sharded; got {value}. Shard the table with"
        " shard_table, or describe existing shards with ShardedTable(parts, Layout(num_rows, devices, axis, strategy))."
    ),
    "layout_differs": Message("{argument}: got {value}, but the table was sharded with {bound}"),
    "table_tapped": Message(
        "inside value_and_rows a table can be read only by table[ids] and table.bags, outside of jit, vmap, grad, scan,"
        " cond and checkpoint, because other reads would lose their gradient. Pass what was looked up, or use"
        " jax.value_and_grad for dense gradients."
    ),
    "rows_of_rows": Message(
        "value_and_rows inside value_and_rows is not supported. For a derivative of row-sparse gradients use jax.grad"
        " around value_and_rows, which returns a dense gradient of the table.",
        ("params",),
        "UnimplementedError",
        states=("argument",),
    ),
    "parameter_is_gradient": Message(
        "a Table in params holds a row-sparse gradient instead of an array. Pass the parameters, not their gradients.",
        ("params",),
    ),
    "table_index": Message(
        "table[ids] takes an array or a list of row numbers; got a {value}. For a range of rows pass jnp.arange; for"
        " columns index the result, as in table[ids][..., 0].",
        ("ids",),
        states=("argument",),
    ),
    "table_as_array": Message(
        "a {value} is not an array. Look up its rows with table[ids] or rowgrad.jax.embedding_bag, or use table.array,"
        " or table.rows for the row-sparse gradient that it holds.",
        ("table",),
        states=("argument",),
    ),
    "table_sharded": Message(
        "the {value} of a table are sharded over {bound} under jit, so every device would gather the whole table."
        " Replicate it, or use rowgrad.jax.sharded: shard_table, and embedding_bag inside shard_map.",
        ("data", "params", "table"),
        states=("argument",),
    ),
    "mesh_unknown": Message(
        "{argument}: the mesh of sharded operands is unknown here. Call it inside shard_map.", (), "UnimplementedError"
    ),
    "table_lost": Message(
        "value_and_rows: a Table was flattened, so its array is a plain parameter and would get a dense gradient. Pass"
        " a tree that holds the Table itself (in flax.nnx: nnx.Param(Table(…)), or the module for its state), or look"
        " up the array with rowgrad.jax.embedding_bag to get a dense gradient."
    ),
    "rows_unchecked": Message(
        "value_and_rows: JAX does not track which arrays differ over {value}, so every device would update the shared"
        " table with its own rows only. Use shard_map without check_vma=False, jax.value_and_grad with jax.lax.psum, or"
        " a table sharded by rowgrad.jax.sharded.",
        ("table",),
        "UnimplementedError",
        states=("argument",),
    ),
    "lookup_unfit": Message(
        "a lookup inside value_and_rows does not support {argument}, because its row-sparse gradient is that of its ids"
    ),
    "lookups_differ": Message(
        "value_and_rows: the function did not repeat the same table lookups when it was traced again"
    ),
    "module_changed": Message(
        "value_and_rows: the function removed {value} from the module. Keep all Variables of a module."
    ),
    "lookup_inside": Message(
        "value_and_rows: a table is looked up inside jit, vmap, grad, scan, cond or checkpoint, which hides its ids."
        " Look it up outside of them."
    ),
    "rows_exported": Message(
        "jax.export cannot serialize a program that takes or returns row-sparse gradients. Take and return their values"
        " and indices instead, and construct IndexedRows outside.",
        (),
        "UnimplementedError",
    ),
    "rows_changed": Message("the ids of a row-sparse gradient must be integers; got {value}", ("updates",)),
    "rows_arithmetic": Message(
        "a row-sparse gradient is not an array. Scale, add, clip and sum it with rowgrad.jax.rows, apply optax"
        " transformations with rowgrad.jax.rows.on_rows, or make it dense with rowgrad.jax.rows.to_dense (NumPy:"
        " rowgrad.densify).",
        (),
        "RowArithmeticError",
    ),
    "row_ids_arithmetic": Message(
        "{what} is not defined for the row ids of a gradient, which array functions would change. Wrap optax"
        " transformations, as in rowgrad.jax.rows.on_rows(optax.clip_by_global_norm(1.0)), use"
        " rowgrad.jax.rows.{function} on the whole gradient, or make it dense with rowgrad.jax.rows.to_dense.",
        (),
        "RowArithmeticError",
    ),
    "rows_shapes": Message("row-sparse gradients to add must have the same shape; got {value} and {bound}"),
    "transformation_unfit": Message(
        "on_rows cannot apply {value} to row-sparse gradients: {why}. Use the optimizers of rowgrad.jax.optim for"
        " tables, and optax.multi_transform to apply it to other parameters.",
        ("transformation",),
        states=("argument",),
    ),
    "transformation_mixes": Message(
        "on_rows cannot apply {value} inside shard_map: its result depends on elements that other devices have. Use"
        " rowgrad.jax.rows.clip_by_global_norm for global norms, which sums over the mesh, as in"
        " optax.stateless(lambda grads, _: rows.clip_by_global_norm(grads, 1.0)).",
        ("transformation",),
        "UnimplementedError",
        states=("argument",),
    ),
    "gradient_differs": Message(
        "the gradient at {value} differs over mesh axis {bound}, so its norm is unknown. If it is a term of a sum, sum"
        " it with rowgrad.jax.rows.psum first; if it is a shard, pass specs=, the PartitionSpecs of the gradients.",
        ("tree",),
        states=("argument",),
    ),
    "axes_unknown": Message(
        "the gradient at {value} may differ over mesh axis {bound}, which JAX does not track here. Pass specs=, the"
        " PartitionSpecs of the gradients: PartitionSpec() if arrays outside a ShardedTable are the same on all"
        " devices.",
        ("tree",),
        "UnimplementedError",
        states=("argument",),
    ),
    "shard_outside": Message(
        "the gradient of a table that is sharded over {value} can be used only inside shard_map over that axis, because"
        " its rows are those of one shard",
        ("tree",),
        "UnimplementedError",
        states=("argument",),
    ),
    "gradient_complex": Message(
        "optimizers of rowgrad.jax accept real gradients only; got {value}. Use optax.multi_transform to train such"
        " parameters in another way.",
        ("updates",),
        states=("argument",),
    ),
    "rows_stacked": Message(
        "the ids of a row-sparse gradient must have rank 1; got rank {value}. Sum stacked row-sparse gradients with"
        " rowgrad.jax.rows.accumulate.",
        ("updates",),
        states=("argument",),
    ),
    "rows_not_stacked": Message(
        "accumulate takes row-sparse gradients stacked along a leading axis; got ids of rank {value}",
        ("stacked",),
    ),
    "update_unfit": Message(
        "a gradient or an update must have the shape of its parameter, {bound}; got {value}", ("updates",)
    ),
    "update_dtype": Message(
        "an update of {value} cannot be added to a parameter of {bound} without losing precision", ("updates",)
    ),
    "parameter_unfit": Message(
        "the gradient of a parameter that is not a floating-point array must be None; got {value}", ("updates",)
    ),
    "state_unfit": Message(
        "the state must be the one that init of this optimizer ({value}) returned for these parameters, with {why}",
        ("state",),
    ),
    "needs_params": Message("{value} decays weights, so update needs params", ("params",)),
    # runners
    "no_runner": Message(
        "{value} are not supported by this installation, which has {bound}. Install rowgrad again, or pass NumPy"
        " arrays.",
        (),
        "UnimplementedError",
    ),
    "mixed_runners": Message(
        "{argument} is an array of {value}, but {other} is one of {bound}. Convert one of them with"
        " torch.from_dlpack(array) or jax.numpy.from_dlpack(tensor)."
    ),
}

MESSAGES: dict[str, Message] = TENSORFLOW_MESSAGES | OWN_MESSAGES
