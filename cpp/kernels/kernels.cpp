// The lists of kernels: one line each.
#include "kernels.h"

#include <stdexcept>
#include <string_view>

#include "kernel_parameters.h"
#include "rowgrad/bag_ids.h"
#include "rowgrad/dispatch.h"
#include "rowgrad/elementwise.h"
#include "rowgrad/row_plan.h"
#include "rowgrad/segment_rows.h"
#include "rowgrad/sparse_add.h"
#include "rowgrad/sparse_apply.h"
#include "rowgrad/sparse_rows.h"
#include "rowgrad/sparse_segment.h"
#include "rowgrad/sparse_slice.h"
#include "rowgrad/weighted_segment.h"
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace rowgrad {
namespace {

template <class K>
std::unique_ptr<Kernel> make() {
  return std::make_unique<K>();
}

// Dtypes of kernels that only copy values by width: all.
std::vector<DType> any() {
  std::vector<DType> all;
#define ROWGRAD_ANY(name, type) all.push_back(DType::name);
  ROWGRAD_DTYPES(ROWGRAD_ANY)
#undef ROWGRAD_ANY
  return all;
}

std::vector<KernelEntry> with_parameters(std::vector<KernelEntry> list) {
  for (KernelEntry& entry : list) {
    for (const KernelParameters& k : kKernelParameters)
      if (std::string_view(k.kernel) == entry.name) entry.parameters = &k;
    if (!entry.parameters)
      throw std::logic_error(std::string(entry.name) + " has no KernelSpec in src/rowgrad/_catalog: declare it beside its ops");
  }
  return list;
}

}  // namespace

const std::vector<KernelEntry>& kernels() {
  static const std::vector<KernelEntry> list = with_parameters({
      {"sparse_segment", make<SparseSegment>, Reals::list()},
      {"sparse_segment_grad", make<SparseSegmentGrad>, Floats::list()},
      {"sparse_segment_grad_padded", make<PaddedSegmentGrad>, Floats::list()},
      {"sparse_segment_grad_grad", make<SparseSegmentGradGrad>, Floats::list()},
      {"segment_sum", make<SegmentSum>, Numbers::list()},
      {"gather_rows", make<GatherRows>, any()},
      {"scatter_rows", make<ScatterRows>, Numbers::list()},
      {"row_positions", make<RowPositions>, Indices::list()},
      {"weighted_segment", make<WeightedSegment>, Floats::list()},
      {"weighted_segment_grad", make<WeightedSegmentGrad>, Floats::list()},
      {"weighted_segment_grad_rows", make<WeightedSegmentGradRows>, Floats::list()},
      {"row_plan", make<RowPlan>, Indices::list()},
      {"planned_ids", make<PlannedIds>, Indices::list()},
      {"planned_segment_grad", make<PlannedSegmentGrad>, Floats::list()},
      {"planned_weighted_grad", make<PlannedWeightedGrad>, Floats::list()},
      {"segment_ids_from_offsets", make<SegmentIdsFromOffsets>, Indices::list()},
      {"stack_bags", make<StackBags>, Indices::list()},
      {"sqrt", make<Sqrt>, Floats::list()},
      {"sparse_segment_dot", make<SparseSegmentDot>, Floats::list()},
      {"row_dot", make<RowDot>, Floats::list()},
      {"fill_empty_rows", make<FillEmptyRows>, any()},
      {"fill_empty_rows_grad", make<FillEmptyRowsGrad>, Numbers::list()},
      {"fill_empty_rows_grad_grad", make<FillEmptyRowsGradGrad>, Numbers::list()},
      {"sparse_slice", make<SparseSlice>, any()},
      {"sparse_slice_grad", make<SparseSliceGrad>, any()},
      {"sparse_slice_grad_grad", make<SparseSliceGradGrad>, any()},
      {"sparse_add", make<SparseAdd>, Numbers::list()},
      {"sparse_add_grad", make<SparseAddGrad>, any()},
      {"sparse_add_grad_grad", make<SparseAddGradGrad>, Numbers::list()},
  });
  return list;
}

const std::vector<KernelEntry>& update_kernels() {
  static const std::vector<KernelEntry> list = with_parameters({
      {"apply_rows", make<ApplyRows>, Floats::list()},
      {"apply_all", make<ApplyAll>, Floats::list()},
      {"apply_bags", make<ApplyBags>, Floats::list()},
      {"apply_planned", make<ApplyPlanned>, Floats::list()},
  });
  return list;
}

std::string KernelEntry::parameter_error(std::span<const std::int64_t> attr) const {
  const auto& list = parameters->list;
  if (attr.size() != list.size())
    return std::string(name) + " reads " + std::to_string(list.size()) + " numbers, got " + std::to_string(attr.size());
  const std::int64_t* value = attr.data();
  for (const Parameter& p : list) {
    if (p.count > 0 && (*value < 0 || *value >= p.count))
      return std::string(name) + ": " + p.name + " must be in [0, " + std::to_string(p.count) + "), got " +
             std::to_string(*value);
    ++value;
  }
  return {};
}

std::int64_t memory_limit() {
#if defined(__unix__) || defined(__APPLE__)
  static const std::int64_t bytes = std::int64_t(sysconf(_SC_PHYS_PAGES)) * std::int64_t(sysconf(_SC_PAGESIZE));
  return bytes;
#else
  return std::int64_t{1} << 40;
#endif
}

}  // namespace rowgrad
