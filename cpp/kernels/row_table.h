// The function table of row arithmetic: filled once per level in rows.cpp and update_rows.cpp, chosen in row_level.cpp.
#pragma once
#include <complex>
#include <tuple>

#include "rowgrad/row_update.h"
#include "rowgrad/rows.h"

namespace rowgrad {

template <template <class> class Ops, class... Ts>
using TableOf = std::tuple<Ops<Ts>...>;

template <template <class> class Ops>
using FloatTable = TableOf<Ops, half, bfloat16, float, double>;

template <template <class> class Ops>
using RealTable = TableOf<Ops, half, bfloat16, float, double, std::int8_t, std::int16_t, std::int32_t, std::int64_t,
                          std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>;

template <template <class> class Ops>
using NumberTable =
    TableOf<Ops, half, bfloat16, float, double, std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t,
            std::uint16_t, std::uint32_t, std::uint64_t, std::complex<float>, std::complex<double>>;

struct RowTable {
  ScanOps scan;
  RealTable<SumOps> sum;
  NumberTable<SegmentSumOps> segment_sum;
  FloatTable<GradOps> grad;
  FloatTable<UpdateOps> update;
};

}  // namespace rowgrad
