// SparseSlice, its gradient and the transpose of the gradient, on lists in any order.
#include "naive_lists.h"

using namespace fuzz;
using test::ids_of;

namespace {

Numbers64 corner(Input& in, std::int64_t rank) {
  Numbers64 c;
  for (std::int64_t d = 0; d < rank; ++d) c.push_back(in.byte() % 8 == 7 ? in.number(9) : in.below(30) - 3);
  return c;
}

std::int64_t extent(std::int64_t dim, std::int64_t start, std::int64_t size) {
  if (start < wrapping(dim, size, -1)) return size;
  return start < dim ? wrapping(dim, start, -1) : 0;
}

bool inside(const Numbers64& entry, const Numbers64& start, const Numbers64& size) {
  for (std::size_t d = 0; d < entry.size(); ++d)
    if (entry[d] < start[d] || entry[d] >= wrapping(start[d], size[d], 1)) return false;
  return true;
}

void slice(Input& in, DType dtype, std::int64_t rank) {
  const CoordinateList list = list_of(in, rank);
  const Numbers64 shape = corner(in, rank), start = corner(in, rank), size = corner(in, rank);
  const Tensor values = in.values(dtype, {list.size()});
  const Result r = test::run("sparse_slice", {}, {list.tensor(), values, ids_of(shape), ids_of(start), ids_of(size)},
                             [&](std::int64_t rows) {
                               return std::vector<Tensor>{Tensor(DType::int64, {rows, rank}), Tensor(dtype, {rows}),
                                                          Tensor(DType::int64, {rank})};
                             });
  if (!accepted(r, true)) return;
  CoordinateList out{rank, {}};
  Numbers64 selected, extents;
  for (std::int64_t i = 0; i < list.size(); ++i) {
    if (!inside(list.entries[i], start, size)) continue;
    out.entries.push_back(moved(list.entries[i], start, -1));
    selected.push_back(i);
  }
  for (std::int64_t d = 0; d < rank; ++d) extents.push_back(extent(shape[d], start[d], size[d]));
  EXPECT(same_bits(r.out[0], out.tensor()));
  EXPECT(same_bits(r.out[1], picked(values, selected)));
  EXPECT(same_bits(r.out[2], ids_of(extents)));
}

// The output is a subset of the input, or an unrelated list.
void gradients(Input& in, DType dtype, std::int64_t rank) {
  const CoordinateList input = list_of(in, rank);
  const Numbers64 start = corner(in, rank);
  CoordinateList output = in.byte() % 4 == 3 ? list_of(in, rank) : some_of(in, input);
  for (Numbers64& entry : output.entries) entry = moved(entry, start, -1);
  const std::int64_t n = input.size(), m = output.size();
  const Tensor grad = in.values(dtype, {m}), values = in.values(dtype, {n});
  auto walk = [&](const char* name, const Tensor& of, std::int64_t length) {
    return test::run(name, {}, {of, input.tensor(), ids_of(start), output.tensor()},
                     [&](std::int64_t) { return std::vector<Tensor>{Tensor(dtype, {length})}; });
  };
  const Result r = walk("sparse_slice_grad", grad, n), back = walk("sparse_slice_grad_grad", values, m);
  Numbers64 origin(static_cast<std::size_t>(n), -1), selected;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto k = std::int64_t(selected.size());
    if (k == m || moved(input.entries[i], start, -1) != output.entries[k]) continue;
    origin[i] = k;
    selected.push_back(i);
  }
  const auto used = std::int64_t(selected.size());
  if (!accepted(r, used == m) || !accepted(back, used == m)) {
    if (r.status.fault == Fault::slice_left_over) EXPECT_EQ(r.status.value, used);
    return;
  }
  EXPECT(same_bits(r.out[0], picked(grad, origin)));
  EXPECT(same_bits(back.out[0], picked(values, selected)));
}

void one(Input& in) {
  const DType dtype = in.pick(test::all_dtypes());
  const std::int64_t rank = 1 + in.below(4);
  in.flag() ? slice(in, dtype, rank) : gradients(in, dtype, rank);
}

}  // namespace

FUZZ_TARGET(one)
