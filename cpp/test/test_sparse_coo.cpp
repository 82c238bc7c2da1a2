// SparseSlice and SparseAdd on coordinate lists, their gradients and the transposes of the gradients.
#include "rowgrad/sparse_add.h"
#include "rowgrad/sparse_slice.h"

#include "call.h"
#include "naive.h"

using namespace test;

namespace {

std::int64_t size_of(const Numbers64& v) { return std::int64_t(v.size()); }

// Returns elements `from` of a vector, bit for bit; zero for position -1.
Tensor picked(const Tensor& values, const Numbers64& from) {
  Tensor out(values.dtype, {size_of(from)});
  for (std::int64_t i = 0; i < size_of(from); ++i)
    if (from[i] >= 0) out.copy(i, values, from[i]);
  return out;
}

Result slice(const Tensor& indices, const Tensor& values, const Numbers64& shape, const Numbers64& start,
             const Numbers64& size) {
  return run_same("sparse_slice", {}, {indices, values, ids_of(shape), ids_of(start), ids_of(size)},
                  [&](std::int64_t rows) {
                    return std::vector<Tensor>{Tensor(DType::int64, {rows, indices.cols()}),
                                               Tensor(values.dtype, {rows}), Tensor(DType::int64, {size_of(shape)})};
                  });
}

Result slice_walk(const char* name, const Tensor& values, const Tensor& input, const Numbers64& start,
                  const Tensor& output, std::int64_t length) {
  return run_same(name, {}, {values, input, ids_of(start), output},
                  [&](std::int64_t) { return std::vector<Tensor>{Tensor(values.dtype, {length})}; });
}

// A slice, then its gradient and the transpose on the resulting lists. Entries are in any order, with repeats.
void check_slice(Rng& rng, DType dtype, std::int64_t n, std::int64_t rank) {
  const Where where("slice", {{"dtype", int(dtype)}, {"n", n}, {"rank", rank}});
  const auto flat = random_ids(rng, n * rank, 10);
  const Numbers64 shape(static_cast<std::size_t>(rank), 10);
  Numbers64 start, size, extent;
  for (std::int64_t d = 0; d < rank; ++d) {
    start.push_back(rng.between(-2, 4));
    size.push_back(rng.between(5, 14));
    extent.push_back(std::min(size[d], 10 - start[d]));  // clipped to the shape
  }
  Numbers64 moved, selected, origin(static_cast<std::size_t>(n), -1);
  for (std::int64_t i = 0; i < n; ++i) {
    bool inside = true;
    for (std::int64_t d = 0; d < rank; ++d)
      inside &= flat[i * rank + d] >= start[d] && flat[i * rank + d] < start[d] + size[d];
    if (!inside) continue;
    for (std::int64_t d = 0; d < rank; ++d) moved.push_back(flat[i * rank + d] - start[d]);
    origin[i] = size_of(selected);
    selected.push_back(i);
  }
  const std::int64_t m = size_of(selected);
  const Tensor input = matrix_of(flat, n, rank), output = matrix_of(moved, m, rank);
  const Tensor values = random_tensor(rng, dtype, {n}), grad = random_tensor(rng, dtype, {m});
  const Result r = slice(input, values, shape, start, size);
  EXPECT_OUTPUT(r, 0, output);
  EXPECT_OUTPUT(r, 1, picked(values, selected));
  EXPECT_OUTPUT(r, 2, ids_of(extent));
  EXPECT_OUTPUT(slice_walk("sparse_slice_grad", grad, input, start, output, n), 0, picked(grad, origin));
  EXPECT_OUTPUT(slice_walk("sparse_slice_grad_grad", values, input, start, output, m), 0, picked(values, selected));
  if (m == 0) return;
  // An output entry that is not in the input is left over, and so is everything after it.
  const std::int64_t at = rng.below(m);
  moved[at * rank] = 99;
  const Tensor wrong = matrix_of(moved, m, rank);
  EXPECT_FAULT(slice_walk("sparse_slice_grad", grad, input, start, wrong, n), Fault::slice_left_over, -1, at, m);
  EXPECT_FAULT(slice_walk("sparse_slice_grad_grad", values, input, start, wrong, m), Fault::slice_left_over, -1, at, m);
}

// Coordinates and boxes at the limits of int64: arithmetic wraps instead of overflowing.
void test_slice_extremes() {
  const Tensor list = matrix_of({INT64_MIN, -1, 0, INT64_MAX - 1, INT64_MAX}, 5, 1);
  const Tensor values = ids_of({1, 2, 3, 4, 5}, false);
  auto selected = [&](std::int64_t start, std::int64_t size) { return slice(list, values, {10}, {start}, {size}).rows; };
  EXPECT_EQ(selected(0, INT64_MAX), 2);
  EXPECT_EQ(selected(INT64_MIN, INT64_MAX), 1);
  EXPECT_EQ(selected(-1, INT64_MAX), 2);
  EXPECT_EQ(selected(INT64_MAX, 1), 0);  // the end wraps
  EXPECT_EQ(selected(5, INT64_MAX), 0);
  EXPECT_EQ(selected(0, 0), 0);
  EXPECT_EQ(selected(0, -1), 0);
  const auto far = slice_walk("sparse_slice_grad", ids_of({7}), list, {INT64_MAX}, matrix_of({1}, 1, 1), 5);
  EXPECT_OUTPUT(far, 0, ids_of({7, 0, 0, 0, 0}));  // 1 + INT64_MAX is INT64_MIN
}

Result add(const Tensor& a, const Tensor& av, const Tensor& b, const Tensor& bv, const Tensor& thresh) {
  const Tensor shape = ids_of(Numbers64(static_cast<std::size_t>(a.cols()), 50));
  return run_same("sparse_add", {}, {a, av, shape, b, bv, shape, thresh}, [&](std::int64_t rows) {
    return std::vector<Tensor>{Tensor(DType::int64, {rows, a.cols()}), Tensor(av.dtype, {rows}), shape};
  });
}

Result add_grad(const Tensor& grad, const Tensor& a, const Tensor& b, const Tensor& sum) {
  return run_same("sparse_add_grad", {}, {grad, a, b, sum}, [&](std::int64_t) {
    return std::vector<Tensor>{Tensor(grad.dtype, {a.rows()}), Tensor(grad.dtype, {b.rows()})};
  });
}

Result add_grad_grad(const Tensor& da, const Tensor& db, const Tensor& a, const Tensor& b, const Tensor& sum) {
  return run_same("sparse_add_grad_grad", {}, {da, db, a, b, sum},
                  [&](std::int64_t) { return std::vector<Tensor>{Tensor(da.dtype, {sum.rows()})}; });
}

// a[from_a[k]] + b[from_b[k]] for every k; -1 means a missing entry, and the other one keeps its bits.
Tensor sums_of(const Tensor& a, const Numbers64& from_a, const Tensor& b, const Numbers64& from_b) {
  Tensor out = picked(a, from_a);
  for (std::int64_t k = 0; k < size_of(from_b); ++k)
    if (from_a[k] < 0 && from_b[k] >= 0) out.copy(k, b, from_b[k]);
  visit(Numbers{}, a.dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t k = 0; k < size_of(from_a); ++k)
      if (from_a[k] >= 0 && from_b[k] >= 0)
        out.as<T>()[k] = store<T>(naive::added(load(a.as<T>()[from_a[k]]), load(b.as<T>()[from_b[k]])));
  });
  return out;
}

// Whether thresh <= |sum|. int32 and int64 have no |min|, and TensorFlow's stays negative.
template <class T>
bool passes(T sum, typename RealOf<T>::type thresh) {
  if constexpr (std::is_integral_v<T>) {
    const bool stays = std::is_signed_v<T> && sizeof(T) >= 4 && sum == std::numeric_limits<T>::min();
    return stays ? thresh <= sum : __int128(thresh) <= (__int128(sum) < 0 ? -__int128(sum) : __int128(sum));
  } else {
    return load(thresh) <= std::abs(load(sum));
  }
}

// A sorted list of about n distinct places below `bound`.
Numbers64 random_places(Rng& rng, std::int64_t n, std::int64_t bound) {
  Numbers64 places;
  for (std::int64_t p = 0; p < bound; ++p)
    if (rng.below(bound) < n) places.push_back(p);
  return places;
}

// Converts place p to coordinates: its digits in base `base`, which keeps the order.
Tensor coordinates_of(const Numbers64& places, std::int64_t rank, std::int64_t base) {
  Tensor out(DType::int64, {size_of(places), rank});
  for (std::int64_t i = 0; i < size_of(places); ++i)
    for (std::int64_t d = rank - 1, p = places[i]; d >= 0; --d, p /= base)
      out.as<std::int64_t>()[i * rank + d] = p % base;
  return out;
}

// Returns the position in `list` of each of the places `of`, both sorted, or -1.
Numbers64 positions_in(const Numbers64& list, const Numbers64& of) {
  Numbers64 out;
  for (std::int64_t p : of) {
    const auto it = std::lower_bound(list.begin(), list.end(), p);
    out.push_back(it != list.end() && *it == p ? it - list.begin() : -1);
  }
  return out;
}

void check_add_grad(Rng& rng, DType dtype, const Numbers64& a, const Numbers64& b, const Numbers64& sum,
                    std::int64_t rank, std::int64_t base) {
  const Tensor am = coordinates_of(a, rank, base), bm = coordinates_of(b, rank, base);
  const Tensor sm = coordinates_of(sum, rank, base), grad = random_tensor(rng, dtype, {size_of(sum)});
  const Tensor da = random_tensor(rng, dtype, {size_of(a)}), db = random_tensor(rng, dtype, {size_of(b)});
  const Result g = add_grad(grad, am, bm, sm);
  EXPECT_OUTPUT(g, 0, picked(grad, positions_in(sum, a)));
  EXPECT_OUTPUT(g, 1, picked(grad, positions_in(sum, b)));
  EXPECT_OUTPUT(add_grad_grad(da, db, am, bm, sm), 0, sums_of(da, positions_in(a, sum), db, positions_in(b, sum)));
}

void check_add(Rng& rng, DType dtype, std::int64_t na, std::int64_t nb, std::int64_t rank, std::int64_t base) {
  const Where where("add", {{"dtype", int(dtype)}, {"a", na}, {"b", nb}, {"rank", rank}});
  std::int64_t bound = 1;
  for (std::int64_t d = 0; d < rank; ++d) bound *= base;
  const auto a = random_places(rng, na, bound), b = random_places(rng, nb, bound);
  const Tensor av = random_tensor(rng, dtype, {size_of(a)}), bv = random_tensor(rng, dtype, {size_of(b)});
  Tensor thresh(dtype == DType::complex64 ? DType::float32 : dtype == DType::complex128 ? DType::float64 : dtype, {});

  Numbers64 at_a(static_cast<std::size_t>(bound), -1), at_b = at_a, from_a, from_b, place;
  for (std::int64_t i = 0; i < size_of(a); ++i) at_a[a[i]] = i;
  for (std::int64_t j = 0; j < size_of(b); ++j) at_b[b[j]] = j;
  const Tensor both = sums_of(av, at_a, bv, at_b);
  if (rng.chance(3))
    thresh = random_tensor(rng, thresh.dtype, {});
  else if (rng.chance(2) && thresh.dtype == dtype)
    thresh.copy(0, both, rng.below(bound));  // so that some sum may just reach it
  visit(Numbers{}, dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t p = 0; p < bound; ++p)  // thresh applies only to sums of two entries
      if (at_a[p] >= 0 && at_b[p] >= 0 && !passes(both.as<T>()[p], *thresh.as<typename RealOf<T>::type>()))
        at_a[p] = at_b[p] = -1;
  });
  for (std::int64_t p = 0; p < bound; ++p) {
    if (at_a[p] < 0 && at_b[p] < 0) continue;
    from_a.push_back(at_a[p]);
    from_b.push_back(at_b[p]);
    place.push_back(p);
  }
  const Tensor am = coordinates_of(a, rank, base), bm = coordinates_of(b, rank, base);
  const Result r = add(am, av, bm, bv, thresh);
  EXPECT_OUTPUT(r, 0, coordinates_of(place, rank, base));
  EXPECT_OUTPUT(r, 1, sums_of(av, from_a, bv, from_b));
  EXPECT_OUTPUT(r, 2, ids_of(Numbers64(static_cast<std::size_t>(rank), 50)));
  check_add_grad(rng, dtype, a, b, place, rank, base);
  check_add_grad(rng, dtype, a, b, random_places(rng, na, bound), rank, base);  // need not be the real sum
}

// Lists in any order, with repeats and extremes: must only end, without an access out of bounds.
void test_add_unsorted(Rng& rng) {
  for (int round = 0; round < 300; ++round) {
    const std::int64_t rank = rng.between(1, 3);
    auto random_matrix = [&] {
      const std::int64_t n = rng.below(12);
      auto flat = random_ids(rng, n * rank, 3);
      for (std::int64_t& c : flat)
        if (rng.chance(8)) c = rng.chance(2) ? INT64_MIN : INT64_MAX;
      return matrix_of(flat, n, rank);
    };
    const Tensor a = random_matrix(), b = random_matrix(), sum = random_matrix();
    const Tensor av = random_tensor(rng, DType::int32, {a.rows()}), bv = random_tensor(rng, DType::int32, {b.rows()});
    EXPECT_FAULT(add(a, av, b, bv, scalar_of(0, false)), Fault::none);
    EXPECT_FAULT(add_grad(random_tensor(rng, DType::int8, {sum.rows()}), a, b, sum), Fault::none);
    EXPECT_FAULT(add_grad_grad(av, bv, a, b, sum), Fault::none);
  }
}

}  // namespace

int main() {
  const FlushSubnormals flush;
  Rng rng(8);
  for (DType dtype : all_dtypes())
    for (std::int64_t rank : {1, 2, 4})
      for (std::int64_t n : {0, 1, 5, 300}) check_slice(rng, dtype, n, rank);
  check_slice(rng, DType::float32, kLarge, 2);
  test_slice_extremes();
  for (DType dtype : Numbers::list())
    for (std::int64_t na : {0, 1, 6, 300})
      for (std::int64_t nb : {0, 1, 40, 200}) check_add(rng, dtype, na, nb, rng.between(1, 3), rng.between(2, 12));
  check_add(rng, DType::float32, kLarge / 2, kLarge / 2, 2, 500);
  if (!kSanitized) check_add(rng, DType::float16, kLarge, 40000, 1, 300000);
  test_add_unsorted(rng);
  set_num_threads(1);
  return test::finish();
}
