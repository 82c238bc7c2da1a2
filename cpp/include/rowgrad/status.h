// What went wrong, as facts. The words are Python's.
#pragma once
#include <cstdint>

namespace rowgrad {

#define ROWGRAD_FAULTS(X)      \
  X(none)                      \
  X(out_of_memory)             \
  X(last_segment_too_big)      \
  X(segment_negative)          \
  X(num_segments_too_small)    \
  X(num_segments_too_big)      \
  X(last_segment_overflows)    \
  X(segments_not_increasing)   \
  X(segment_not_in_output)     \
  X(index_not_in_data)         \
  X(index_not_in_params)       \
  X(segment_count)             \
  X(segment_not_in_grad)       \
  X(index_not_in_output)       \
  X(row_not_in_shape)          \
  X(reverse_index_not_in_grad) \
  X(slice_left_over)           \
  X(id_not_listed)             \
  X(plan_segments_not_in_grad) \
  X(plan_rows)                 \
  X(plan_starts)               \
  X(plan_segments)             \
  X(plan_positions)            \
  X(plan_counts)               \
  X(offsets_begin)             \
  X(offsets_fall)              \
  X(offsets_end)               \
  X(feature_negative)          \
  X(feature_too_far)           \
  X(id_not_in_feature)         \
  X(plan_num_rows)             \
  X(row_ids)                   \
  X(rows_exceed_size)

enum class Fault : std::uint8_t {
#define ROWGRAD_FAULT(name) name,
  ROWGRAD_FAULTS(ROWGRAD_FAULT)
#undef ROWGRAD_FAULT
};

struct [[nodiscard]] Status {
  Fault fault = Fault::none;
  std::int64_t position = -1;  // where in the argument the fault stands
  std::int64_t value = 0;      // what stood there
  std::int64_t bound = 0;      // what it had to be below

  explicit operator bool() const { return fault != Fault::none; }
};

}  // namespace rowgrad
