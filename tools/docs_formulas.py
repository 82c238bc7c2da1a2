"""The formula of every op, for the reference pages. Ops of a family share one line.

n(s) is the number of ids in segment s; sums run over the positions of a batch, ordered as in docs/reference/orders.md.
"""

from __future__ import annotations

import re

SHARE = {"Sum": "", "Mean": " / n(s)", "SqrtN": " / √n(s)"}  # of a segment's sum
PART = {"Sum": "", "Mean": " / n(segment_ids[i])", "SqrtN": " / √n(segment_ids[i])"}  # of an id's gradient
DIVISOR = {"Mean": "Σ weights[i]", "SqrtN": "√Σ weights[i]²"}  # W(s); sums have none

LOOKUP = "output[s] = (Σ data[indices[i]] over i with segment_ids[i] = s){share}"
GRADIENT = "output[r] = Σ grad[segment_ids[i]]{part} over i with indices[i] = r"
UNIQUE = "output[k] = Σ grad[segment_ids[i]]{part} over i with indices[i] = sorted_unique_indices[k]"
W = "W(s) = {divisor}" + " over i with segment_ids[i] = s"
WEIGHTED = "output[s] = (Σ weights[i] · data[indices[i]] over i with segment_ids[i] = s) / W(s)\n" + W
WEIGHTED_GRADIENT = (
    "output[r] = Σ weights[i] · grad[segment_ids[i]] / W(segment_ids[i]) over i with indices[i] = r\n" + W
)
PLANNED = "entries of rows[k]: e from starts[k] to starts[k + 1]; n(s) = counts[s]"
PLANNED_PART = {"Sum": "", "Mean": " / n(segments[e])", "SqrtN": " / √n(segments[e])"}
PLANNED_W = "W(s) = {divisor} over the ids of segment s"

R = "(?P<r>Sum|Mean|SqrtN)"
FAMILIES = {
    rf"SparseSegment{R}(WithNumSegments|GradGrad|WithPlan)?": LOOKUP,
    rf"SparseSegment{R}Grad": GRADIENT,
    rf"SparseSegment{R}GradV2": UNIQUE,
    rf"PaddedSparseSegment{R}GradV2": UNIQUE
    + "\nrows that are left: output[k] = 0, sorted_unique_indices[k] = fill_id",
    rf"WeightedSparseSegment{R}(WithNumSegments|GradGrad|WithPlan)?": WEIGHTED,
    rf"WeightedSparseSegment{R}Grad": WEIGHTED_GRADIENT,
    rf"WeightedSparseSegment{R}GradRows": "output[i] = weights[i] · grad[segment_ids[i]] / W(segment_ids[i])\n" + W,
    rf"PlannedSparseSegment{R}Grad": "output[rows[k]] = Σ grad[segments[e]]{planned_part}\n" + PLANNED,
    rf"PlannedSparseSegment{R}GradV2": "output[k] = Σ grad[segments[e]]{planned_part}\n" + PLANNED,
    rf"PlannedWeightedSparseSegment{R}Grad": "output[rows[k]] = Σ weights[positions[e]] · grad[segments[e]] / "
    "W(segments[e])\n" + PLANNED_W + "; " + PLANNED.partition(";")[0],
    r"(Sparse|Ragged)FillEmptyRows": "output_values[reverse_index_map[i]] = values[i]\n"
    "output_values[k] = default_value for every k that no i is mapped to",
    r"(Sparse|Ragged)FillEmptyRowsGrad": "d_values[i] = grad_values[reverse_index_map[i]]\n"
    "d_default_value = Σ grad_values[k] over the k that no i is mapped to",
    r"(Sparse|Ragged)FillEmptyRowsGradGrad": "output[k] = Σ dd_values[i] over i with reverse_index_map[i] = k\n"
    "output[k] = dd_default_value where there is no such i",
}

FORMULAS = {
    # Sparse tensor
    "SparseSlice": "entries i with start[d] ≤ indices[i, d] < start[d] + size[d] for every d\n"
    "output_indices: indices[i] − start, output_values: values[i], in input order",
    "SparseSliceGrad": "val_grad[i] = backprop_val_grad[k] where input_indices[i] = output_indices[k] + input_start\n"
    "val_grad[i] = 0 where there is no such k",
    "SparseSliceGradGrad": "output[k] = grad[i] where input_indices[i] = output_indices[k] + input_start",
    "SparseAdd": "sum_values at p = a_values at p + b_values at p\n"
    "p is kept if one side alone has it, or thresh ≤ |a + b|",
    "SparseAddGrad": "a_val_grad[i] = backprop_val_grad[k] where a_indices[i] = sum_indices[k], else 0; b likewise",
    "SparseAddGradGrad": "output[k] = da[i] + db[j] where a_indices[i] = b_indices[j] = sum_indices[k]",
    # Plan, rows, bags
    "RowPlan": "positions = the stable order of indices; rows = its distinct values; starts = where each begins\n"
    "segments[e] = segment_ids[positions[e]]; counts[s] = n(s)",
    "PlannedIds": "indices[positions[e]] = rows[k] for starts[k] ≤ e < starts[k + 1]\n"
    "segment_ids[positions[e]] = segments[e]",
    "SegmentSum": "output[s] = Σ data[i] over i with segment_ids[i] = s",
    "GatherRows": "output[i] = params[indices[i]]",
    "ScatterRows": "output[r] = Σ grad[i] over i with indices[i] = r",
    "RowPositions": "positions[i] = k with sorted_ids[k] = ids[i]",
    "SparseSegmentDot": "output[i] = Σ grad[segment_ids[i], c] · data[indices[i], c] over columns c",
    "RowDot": "output[i] = Σ x[i, c] · y[i, c] over columns c",
    "SegmentIdsFromOffsets": "segment_ids[i] = b with offsets[b] ≤ i < offsets[b + 1]",
    "StackBags": "stacked: indices[i] + feature_first[f] for id i of feature f\n"
    "segment_ids: b · F + f for bag b of feature f",
    # Arithmetic
    "SumLike": "output = Σ x over the dimensions along which like would be repeated",
    "BroadcastLike": "output[p] = x[p without the repeated dimensions]",
    "Add": "z = x + y",
    "Sub": "z = x − y",
    "Mul": "z = x · y",
    "Div": "z = x / y, towards zero for integers",
    "RealDiv": "z = x / y",
    "DivNoNan": "z = x / y, 0 where y = 0",
    "Mod": "z = x − y · trunc(x / y)",
    "FloorMod": "z = x − y · ⌊x / y⌋",
    "FloorDiv": "z = ⌊x / y⌋",
    "Pow": "z = x^y",
    "Maximum": "z = max(x, y)",
    "Minimum": "z = min(x, y)",
    "SquaredDifference": "z = (x − y)²",
    "AddN": "sum = inputs[0] + inputs[1] + …",
    # Elementwise
    "Neg": "y = −x",
    "Abs": "y = |x|",
    "Sign": "y = −1 for x < 0, 0 for x = 0, 1 for x > 0",
    "Square": "y = x²",
    "Sqrt": "y = √x",
    "Rsqrt": "y = 1 / √x",
    "Reciprocal": "y = 1 / x",
    "Log": "y = ln x",
    "Log1p": "y = ln(1 + x)",
    "Exp": "y = e^x",
    "Expm1": "y = e^x − 1",
    "Sin": "y = sin x",
    "Cos": "y = cos x",
    "Sigmoid": "y = 1 / (1 + e^−x)",
    "Tanh": "y = tanh x",
    "Softplus": "y = ln(1 + e^x)",
    "Floor": "y = ⌊x⌋",
    "Ceil": "y = ⌈x⌉",
    "Round": "y = the whole number nearest to x, of two the even one",
    "Relu": "activations = max(features, 0)",
    "ReluGrad": "backprops = gradients where features > 0, else 0",
    # Comparison
    "Equal": "z = (x = y)",
    "NotEqual": "z = (x ≠ y)",
    "Less": "z = (x < y)",
    "LessEqual": "z = (x ≤ y)",
    "Greater": "z = (x > y)",
    "GreaterEqual": "z = (x ≥ y)",
    "LogicalAnd": "z = x ∧ y",
    "LogicalOr": "z = x ∨ y",
    "LogicalNot": "y = ¬x",
    "Select": "output = x where condition, else y",
    # Conversion
    "Cast": "y = x in DstT",
    "CastLike": "output = x in the dtype of like",
    "Identity": "output = input",
    "StopGradient": "output = input, d output / d input = 0",
    "ZerosLike": "y = 0",
    "OnesLike": "y = 1",
    "FullLike": "output = value",
    # Reduction: sums run along axis
    "Sum": "output = Σ input",
    "Mean": "output = Σ input / number of its terms",
    "Prod": "output = Π input",
    "Max": "output = max input",
    "Min": "output = min input",
    "All": "output = ∧ input",
    "Any": "output = ∨ input",
    "ProdOthers": "output[p] = product of inputs[0] over all other positions along axis, without weights",
    "SpreadLike": "output[p] = x[p without axis], divided by the number of terms with mean=True",
    "ArgMax": "output = the least k with input[k] = max input",
    "ArgMin": "output = the least k with input[k] = min input",
    "L2Loss": "output = Σ t² / 2",
    # Losses: sums run along the last dimension
    "Softmax": "softmax = e^logits / Σ e^logits",
    "LogSoftmax": "logsoftmax = logits − ln Σ e^logits",
    "SoftmaxCrossEntropyWithLogits": "loss = −Σ labels · ln softmax(features)\nbackprop = softmax(features) − labels",
    "SigmoidCrossEntropyWithLogits": "loss = max(logits, 0) − logits · labels + ln(1 + e^−|logits|)",
    "BiasAdd": "output[…, c] = value[…, c] + bias[c]",
    # Matrix
    "MatMul": "product[i, j] = Σ a[i, k] · b[k, j] over k",
    "Transpose": "y[p[perm[0]], p[perm[1]], …] = x[p]",
    "TransposeBack": "y[p] = x[p[perm[0]], p[perm[1]], …]",
    # Arrangement
    "Reshape": "element k of output = element k of tensor, in row-major order",
    "ReshapeLike": "element k of output = element k of x, in row-major order",
    "MergeDims": "output[k, …] = x[k₀, k₁, …, …], k = (k₀ · d₁ + k₁) · d₂ + …",
    "ExpandDims": "output[…, 0, …] = input[…, …]",
    "Squeeze": "output[…, …] = input[…, 0, …]",
    "Concat": "output[…, oⱼ + k, …] = values[j][…, k, …], oⱼ = the sizes of values[0 … j−1] along axis",
    "ConcatPart": "output[…, k, …] = x[…, o + k, …], o = the sizes of values[0 … index−1] along axis",
    "Pack": "output[…, j, …] = values[j]",
    "PartAt": "output = x[…, index, …]",
    "PlaceAt": "output[…, index, …] = x, 0 elsewhere",
    "Column": "output[i] = x[i, index]",
    "Slice": "output[p] = input[begin + p]",
    "SliceLike": "output[p] = x[begin + p]",
    "PadLike": "output[begin + p] = x[p], 0 elsewhere",
    # Picking
    "Gather": "output[p] = params[indices[p]]",
    "OneHot": "output[p, k] = on_value if k = indices[p], else off_value",
    "SparseToDense": "dense[sparse_indices[i]] = sparse_values[i], default_value elsewhere",
    "SparseToDenseLike": "dense[sparse_indices[i]] = sparse_values[i], default_value elsewhere",
    "SparseToDenseGrad": "d_values[i] = grad[sparse_indices[i]], d_default_value = Σ of the other elements of grad",
    "Where": "index = the p with condition[p], in row-major order",
    "Flatnonzero": "positions = the i with mask[i], ascending",
    # Images
    "Conv2D": "output[n, y, x, o] = Σ input[n, y · sy + i · dy − py, x · sx + j · dx − px, c] · filter[i, j, c, o]"
    " over i, j, c",
    "Conv2DBackpropInput": "output[n, y · sy + i · dy − py, x · sx + j · dx − px, c] = Σ out_backprop[n, y, x, o]"
    " · filter[i, j, c, o]",
    "Conv2DBackpropFilter": "output[i, j, c, o] = Σ input[n, y · sy + i · dy − py, x · sx + j · dx − px, c]"
    " · out_backprop[n, y, x, o] over n, y, x",
    "Conv2DInputLike": "output[n, y · sy + i · dy − py, x · sx + j · dx − px, c] = Σ out_backprop[n, y, x, o]"
    " · filter[i, j, c, o]",
    "Conv2DFilterLike": "output[i, j, c, o] = Σ input[n, y · sy + i · dy − py, x · sx + j · dx − px, c]"
    " · out_backprop[n, y, x, o] over n, y, x",
    "MaxPool": "output[n, y, x, c] = max input[n, y · sy + i − py, x · sx + j − px, c] over i, j",
    "MaxPoolGrad": "output[p] = Σ grad[w] over the windows w whose first largest element is p",
    "MaxPoolGradGrad": "output[w] = grad[p], p = the first largest element of window w",
    # Sizes
    "Shape": "output[d] = the size of dimension d",
    "Size": "output = the product of all sizes",
    "Rank": "output = the number of dimensions",
    "Dimension": "output = the size of dimension axis",
    "Fill": "output[p] = value",
    "Range": "output[k] = start + k · delta",
    # Dense rows
    "Positions": "output[i] = i",
    "MaskRows": "output[i] = 0 where mask[i], else rows[i]",
    "ConcatRows": "output = x[0], x[1], …, y[0], y[1], …",
    "SplitRows": "first = the rows that x has in number, second = those that y has",
    "AtLeast": "output = max(x, bound)",
    "MaskBelow": "output = 1 where x ≥ bound, else 0",
    "ScaleRows": "output[i] = scale[i] · rows[i]",
    "DivRows": "output[i] = rows[i] / by[i], 0 where by[i] = 0",
}


def formula(name: str) -> str:
    """Return the formula of an op; a new op needs one here."""
    if name in FORMULAS:
        return FORMULAS[name]
    for pattern, text in FAMILIES.items():
        found = re.fullmatch(pattern, name)
        if found:
            r = found.groupdict().get("r", "Sum")
            text = text.format(share=SHARE[r], part=PART[r], planned_part=PLANNED_PART[r], divisor=DIVISOR.get(r))
            return text if r in DIVISOR else undivided(text)
    raise KeyError(f"{name} has no formula in tools/docs_formulas.py")


def undivided(text: str) -> str:
    """Return a formula without its divisor W and the parentheses of the quotient."""
    text = re.sub(r" / W\([^)]*\)|\nW\(s\) = [^\n;]*(; )?", lambda m: "\n" if m[1] else "", text)
    return re.sub(r"= \((Σ.*)\)$", r"= \1", text, flags=re.MULTILINE)
