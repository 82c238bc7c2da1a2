// Chooses the level of row arithmetic for this machine. All levels return the same bits, except for which of two NaNs
// survives a sum. ROWGRAD_LEVEL selects a lower level, for tests.
#include <cstdlib>
#include <string_view>

#include "cpu_level.h"
#include "row_table.h"

namespace rowgrad {

void fill_rows_baseline(RowTable&);
void fill_updates_baseline(RowTable&);
#ifdef ROWGRAD_X86_LEVELS
void fill_rows_v3(RowTable&);
void fill_updates_v3(RowTable&);
void fill_rows_v4(RowTable&);
void fill_updates_v4(RowTable&);
#endif

namespace {

struct Chosen {
  RowTable table;
  const char* level;
};

const Chosen& chosen() {
  static const Chosen c = [] {
    Chosen it{};
#ifdef ROWGRAD_X86_LEVELS
    const char* highest = std::getenv("ROWGRAD_LEVEL");
    const std::string_view most = highest ? highest : "x86-64-v4";
    if (most == "x86-64-v4" && has_v4()) {
      fill_rows_v4(it.table);
      fill_updates_v4(it.table);
      it.level = "x86-64-v4";
      return it;
    }
    if (most != "baseline" && has_v3()) {
      fill_rows_v3(it.table);
      fill_updates_v3(it.table);
      it.level = "x86-64-v3";
      return it;
    }
#endif
    fill_rows_baseline(it.table);
    fill_updates_baseline(it.table);
    it.level = "baseline";
    return it;
  }();
  return c;
}

}  // namespace

const RowTable& row_table() { return chosen().table; }
const char* row_level() { return chosen().level; }

const ScanOps& scan_ops() { return row_table().scan; }

template <class T>
const SumOps<T>& sum_ops() {
  return std::get<SumOps<T>>(row_table().sum);
}
template <class T>
const SegmentSumOps<T>& segment_sum_ops() {
  return std::get<SegmentSumOps<T>>(row_table().segment_sum);
}
template <class T>
const GradOps<T>& grad_ops() {
  return std::get<GradOps<T>>(row_table().grad);
}

template <class T>
const UpdateOps<T>& update_ops() {
  return std::get<UpdateOps<T>>(row_table().update);
}

#define ROWGRAD_FLOAT(T)                       \
  template const GradOps<T>& grad_ops<T>(); \
  template const UpdateOps<T>& update_ops<T>();
#define ROWGRAD_REAL(T) template const SumOps<T>& sum_ops<T>();
#define ROWGRAD_NUMBER(T) template const SegmentSumOps<T>& segment_sum_ops<T>();
#define ROWGRAD_FLOATS(X) X(half) X(bfloat16) X(float) X(double)
#define ROWGRAD_REALS(X)                                                                              \
  ROWGRAD_FLOATS(X)                                                                                   \
  X(std::int8_t) X(std::int16_t) X(std::int32_t) X(std::int64_t) X(std::uint8_t) X(std::uint16_t) \
  X(std::uint32_t) X(std::uint64_t)
ROWGRAD_FLOATS(ROWGRAD_FLOAT)
ROWGRAD_REALS(ROWGRAD_REAL)
ROWGRAD_REALS(ROWGRAD_NUMBER)
ROWGRAD_NUMBER(std::complex<float>)
ROWGRAD_NUMBER(std::complex<double>)

}  // namespace rowgrad
