// SparseSlice and SparseAdd on coordinate lists, their gradients and the gradients' transposes.
#include "rowgrad/sparse_coo.h"

#include <map>

#include "call.h"
#include "random.h"

using namespace test;

namespace {

using Coordinate = std::vector<std::int64_t>;
using List = std::vector<Coordinate>;

Tensor matrix(const List& list, std::int64_t rank) {
  std::vector<std::int64_t> flat;
  for (const Coordinate& c : list) flat.insert(flat.end(), c.begin(), c.end());
  return tensor(flat, {std::int64_t(list.size()), rank});
}

Coordinate random_coordinate(Rng& rng, std::int64_t rank, std::int64_t bound) {
  Coordinate c;
  for (std::int64_t d = 0; d < rank; ++d) c.push_back(rng.below(bound));
  return c;
}

List random_list(Rng& rng, std::int64_t n, std::int64_t rank, std::int64_t bound) {
  List list;
  for (std::int64_t i = 0; i < n; ++i) list.push_back(random_coordinate(rng, rank, bound));
  return list;
}

List sorted_distinct(List list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

Tensor random_bits(Rng& rng, DType dtype, std::int64_t n) {
  Tensor t(dtype, {n});
  for (std::byte& b : t.bytes) b = std::byte(rng.bits() & (dtype == DType::bool_ ? 1 : 255));
  return t;
}

// Elements `from` of a vector, bit for bit; position -1 gives zeros.
Tensor picked(const Tensor& values, const std::vector<std::int64_t>& from) {
  Tensor out(values.dtype, {std::int64_t(from.size())});
  const std::int64_t width = width_of(values.dtype);
  for (std::size_t i = 0; i < from.size(); ++i)
    if (from[i] >= 0)
      std::copy_n(values.bytes.begin() + from[i] * width, width, out.bytes.begin() + std::int64_t(i) * width);
  return out;
}

Result slice(const List& list, const Tensor& values, const Coordinate& shape, const Coordinate& start,
             const Coordinate& size) {
  const auto rank = std::int64_t(shape.size());
  return run_same("sparse_slice", {}, {matrix(list, rank), values, vector_of(shape), vector_of(start), vector_of(size)},
                  [&](std::int64_t rows) {
                    return std::vector{Tensor(DType::int64, {rows, rank}), Tensor(values.dtype, {rows}),
                                       Tensor(DType::int64, {rank})};
                  });
}

Result slice_walk(const char* name, const Tensor& values, const List& input, const Coordinate& start,
                  const List& output, std::int64_t length) {
  const auto rank = std::int64_t(start.size());
  return run_same(name, {}, {values, matrix(input, rank), vector_of(start), matrix(output, rank)},
                  [&](std::int64_t) { return std::vector{Tensor(values.dtype, {length})}; });
}

// The slice, then its gradient and the transpose on the lists it gave. Entries come in any order, with repeats.
void check_slice(Rng& rng, DType dtype, std::int64_t n, std::int64_t rank) {
  const Where where("slice", {{"dtype", int(dtype)}, {"n", n}, {"rank", rank}});
  const List input = random_list(rng, n, rank, 10);
  const Coordinate shape(static_cast<std::size_t>(rank), 10);
  Coordinate start, size, extent;
  for (std::int64_t d = 0; d < rank; ++d) {
    start.push_back(rng.between(-2, 4));
    size.push_back(rng.between(5, 14));
    extent.push_back(std::min(size[d], 10 - start[d]));  // cut where it reaches past the shape
  }
  std::vector<std::int64_t> kept, origin(input.size(), -1);
  List output;
  for (std::size_t i = 0; i < input.size(); ++i) {
    Coordinate moved = input[i];
    bool inside = true;
    for (std::int64_t d = 0; d < rank; ++d) {
      moved[d] -= start[d];
      inside &= moved[d] >= 0 && moved[d] < size[d];
    }
    if (!inside) continue;
    origin[i] = std::int64_t(kept.size());
    kept.push_back(std::int64_t(i));
    output.push_back(moved);
  }
  const auto m = std::int64_t(output.size());
  const Tensor values = random_bits(rng, dtype, n), grad = random_bits(rng, dtype, m);
  const Result r = slice(input, values, shape, start, size);
  EXPECT_EQ(r.status.fault, Fault::none);
  if (!EXPECT_EQ(r.rows, m)) return;
  EXPECT_SAME(r.out[0], matrix(output, rank));
  EXPECT_SAME(r.out[1], picked(values, kept));
  EXPECT_SAME(r.out[2], vector_of(extent));
  EXPECT_SAME(slice_walk("sparse_slice_grad", grad, input, start, output, n).out[0], picked(grad, origin));
  EXPECT_SAME(slice_walk("sparse_slice_grad_grad", values, input, start, output, m).out[0], picked(values, kept));
  if (m == 0) return;
  // An output entry that was never in the input is left over, and so is everything after it.
  const std::int64_t at = rng.below(m);
  output[at] = Coordinate(static_cast<std::size_t>(rank), 99);
  EXPECT_FAULT(slice_walk("sparse_slice_grad", grad, input, start, output, n), Fault::slice_left_over, -1, at, m);
  EXPECT_FAULT(slice_walk("sparse_slice_grad_grad", values, input, start, output, m), Fault::slice_left_over, -1, at,
               m);
}

// Coordinates and boxes at the ends of int64: arithmetic wraps instead of overflowing.
void test_slice_extremes() {
  const List list{{INT64_MIN}, {-1}, {0}, {INT64_MAX - 1}, {INT64_MAX}};
  const Tensor values = vector_of(std::vector<std::int16_t>{1, 2, 3, 4, 5});
  auto kept = [&](std::int64_t start, std::int64_t size) { return slice(list, values, {10}, {start}, {size}).rows; };
  EXPECT_EQ(kept(0, INT64_MAX), 2);
  EXPECT_EQ(kept(INT64_MIN, INT64_MAX), 1);
  EXPECT_EQ(kept(-1, INT64_MAX), 2);
  EXPECT_EQ(kept(INT64_MAX, 1), 0);  // the end wraps
  EXPECT_EQ(kept(5, INT64_MAX), 0);
  EXPECT_EQ(kept(0, 0), 0);
  EXPECT_EQ(kept(0, -1), 0);
}

template <class T>
bool passes(T sum, typename RealOf<T>::type thresh) {
  if constexpr (std::is_integral_v<T>) {
    // int32 and int64 have no |min|, and TensorFlow's stays negative.
    const bool stays = std::is_signed_v<T> && sizeof(T) >= 4 && sum == std::numeric_limits<T>::min();
    return stays ? thresh <= sum : __int128(thresh) <= (__int128(sum) < 0 ? -__int128(sum) : __int128(sum));
  } else {
    return load(thresh) <= std::abs(load(sum));
  }
}

Result add(const Tensor& a, const Tensor& av, const Tensor& b, const Tensor& bv, const Tensor& thresh) {
  const std::int64_t rank = a.shape[1];
  const Tensor shape = vector_of(Coordinate(static_cast<std::size_t>(rank), 50));
  return run_same("sparse_add", {}, {a, av, shape, b, bv, shape, thresh}, [&](std::int64_t rows) {
    return std::vector{Tensor(DType::int64, {rows, rank}), Tensor(av.dtype, {rows}), Tensor(DType::int64, {rank})};
  });
}

Result add_grad(const Tensor& grad, const Tensor& a, const Tensor& b, const Tensor& sum) {
  return run_same("sparse_add_grad", {}, {grad, a, b, sum}, [&](std::int64_t) {
    return std::vector{Tensor(grad.dtype, {a.shape[0]}), Tensor(grad.dtype, {b.shape[0]})};
  });
}

Result add_grad_grad(const Tensor& da, const Tensor& db, const Tensor& a, const Tensor& b, const Tensor& sum) {
  return run_same("sparse_add_grad_grad", {}, {da, db, a, b, sum},
                  [&](std::int64_t) { return std::vector{Tensor(da.dtype, {sum.shape[0]})}; });
}

template <class T>
T added(T x, T y) {
  return store<T>(plus(load(x), load(y)));
}

template <class T>
void check_add(Rng& rng, std::int64_t na, std::int64_t nb, std::int64_t rank, std::int64_t bound) {
  const Where where("add", {{"dtype", int(code_of<T>())}, {"a", na}, {"b", nb}, {"rank", rank}});
  const List a = sorted_distinct(random_list(rng, na, rank, bound));
  const List b = sorted_distinct(random_list(rng, nb, rank, bound));
  const auto av = random_values<T>(rng, std::int64_t(a.size())), bv = random_values<T>(rng, std::int64_t(b.size()));
  using Real = typename RealOf<T>::type;
  const Real thresh = rng.chance(3) ? Real{} : random_value<Real>(rng);

  std::map<Coordinate, std::pair<std::int64_t, std::int64_t>> merged;  // where in a, where in b; -1: nowhere
  for (std::size_t i = 0; i < a.size(); ++i) merged[a[i]] = {std::int64_t(i), -1};
  for (std::size_t j = 0; j < b.size(); ++j) merged.try_emplace(b[j], -1, 0).first->second.second = std::int64_t(j);
  List sum;
  std::vector<T> sums, back;
  const auto da = random_values<T>(rng, std::int64_t(a.size())), db = random_values<T>(rng, std::int64_t(b.size()));
  std::vector<std::int64_t> place_a(a.size(), -1), place_b(b.size(), -1);
  for (const auto& [at, from] : merged) {
    const auto [i, j] = from;
    const bool both = i >= 0 && j >= 0;
    if (both && !passes(added(av[i], bv[j]), thresh)) continue;  // only sums of two are held against thresh
    if (i >= 0) place_a[i] = std::int64_t(sum.size());
    if (j >= 0) place_b[j] = std::int64_t(sum.size());
    sum.push_back(at);
    sums.push_back(both ? added(av[i], bv[j]) : i >= 0 ? av[i] : bv[j]);
    back.push_back(both ? added(da[i], db[j]) : i >= 0 ? da[i] : db[j]);
  }
  const Tensor am = matrix(a, rank), bm = matrix(b, rank), sm = matrix(sum, rank);
  const Result r = add(am, vector_of(av), bm, vector_of(bv), scalar(thresh));
  EXPECT_EQ(r.status.fault, Fault::none);
  if (!EXPECT_EQ(r.rows, std::int64_t(sum.size()))) return;
  EXPECT_SAME(r.out[0], sm);
  EXPECT_SAME(r.out[1], vector_of(sums));
  EXPECT_SAME(r.out[2], vector_of(Coordinate(static_cast<std::size_t>(rank), 50)));
  const Tensor grad = vector_of(random_values<T>(rng, r.rows));
  const Result g = add_grad(grad, am, bm, sm);
  EXPECT_SAME(g.out[0], picked(grad, place_a));
  EXPECT_SAME(g.out[1], picked(grad, place_b));
  EXPECT_SAME(add_grad_grad(vector_of(da), vector_of(db), am, bm, sm).out[0], vector_of(back));
}

// Lists in any order, with repeats and with extremes: nothing is promised but that it ends, inside its arrays.
void test_add_unsorted(Rng& rng) {
  for (int round = 0; round < 300; ++round) {
    const std::int64_t rank = rng.between(1, 3);
    auto random_matrix = [&] {
      List list = random_list(rng, rng.below(12), rank, 3);
      for (Coordinate& c : list)
        if (rng.chance(5)) c[0] = rng.chance(2) ? INT64_MIN : INT64_MAX;
      return matrix(list, rank);
    };
    const Tensor a = random_matrix(), b = random_matrix(), sum = random_matrix();
    const Tensor av = random_bits(rng, DType::int32, a.shape[0]), bv = random_bits(rng, DType::int32, b.shape[0]);
    EXPECT_EQ(add(a, av, b, bv, scalar(std::int32_t{0})).status.fault, Fault::none);
    EXPECT_EQ(add_grad(random_bits(rng, DType::int8, sum.shape[0]), a, b, sum).status.fault, Fault::none);
    EXPECT_EQ(add_grad_grad(av, bv, a, b, sum).status.fault, Fault::none);
  }
}

}  // namespace

int main() {
  const FlushSubnormals flush;
  Rng rng(8);
  for (int code = 0; code <= int(DType::qint32); ++code)
    for (std::int64_t rank : {1, 2, 4})
      for (std::int64_t n : {0, 1, 5, 300}) check_slice(rng, DType(code), n, rank);
  check_slice(rng, DType::float32, 200000, 2);
  check_slice(rng, DType::bool_, 100000, 3);
  test_slice_extremes();
  each_type(Numbers{}, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t na : {0, 1, 6, 300})
      for (std::int64_t nb : {0, 1, 40, 200}) check_add<T>(rng, na, nb, rng.between(1, 3), rng.between(2, 40));
  });
  check_add<float>(rng, 150000, 150000, 2, 600);
  check_add<half>(rng, 100000, 40000, 1, 150000);
  test_add_unsorted(rng);
  set_num_threads(1);
  return test::finish();
}
