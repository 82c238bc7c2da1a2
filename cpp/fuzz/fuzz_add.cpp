// SparseAdd, its gradient and the transpose of the gradient, against one sequential merge or walk.
#include "../test/naive.h"
#include "naive_lists.h"
#include "rowgrad/sparse_add.h"

using namespace fuzz;
using test::ids_of;

namespace {

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

void add(Input& in, DType dtype, std::int64_t rank) {
  const CoordinateList a = list_of(in, rank), b = in.flag() ? some_of(in, a) : list_of(in, rank);
  const Tensor av = in.values(dtype, {a.size()}), bv = in.values(dtype, {b.size()});
  const DType real = dtype == DType::complex64 ? DType::float32 : dtype == DType::complex128 ? DType::float64 : dtype;
  const Tensor thresh = in.flag() ? in.values(real, {}) : Tensor(real, {});
  Numbers64 dims;
  for (std::int64_t d = 0; d < rank; ++d) dims.push_back(50);
  const Tensor shape = ids_of(dims);
  const Result r = test::run("sparse_add", {}, {a.tensor(), av, shape, b.tensor(), bv, shape, thresh},
                             [&](std::int64_t rows) {
                               return std::vector<Tensor>{Tensor(DType::int64, {rows, rank}), Tensor(dtype, {rows}),
                                                          Tensor(DType::int64, {rank})};
                             });
  if (!accepted(r, true)) return;
  CoordinateList sum{rank, {}};
  Tensor values(dtype, {a.size() + b.size()});
  visit(Numbers{}, dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t i = 0, j = 0; i < a.size() || j < b.size();) {
      const bool takes_a = j == b.size() || (i < a.size() && a.entries[i] <= b.entries[j]);
      const bool takes_b = i == a.size() || (j < b.size() && b.entries[j] <= a.entries[i]);
      const std::int64_t k = sum.size();
      bool keeps = true;
      if (takes_a && takes_b) {
        values.as<T>()[k] = store<T>(naive::added(load(av.as<T>()[i]), load(bv.as<T>()[j])));
        keeps = passes(values.as<T>()[k], *thresh.as<typename RealOf<T>::type>());
      } else {
        values.copy(k, takes_a ? av : bv, takes_a ? i : j);
      }
      if (keeps) sum.entries.push_back(takes_a ? a.entries[i] : b.entries[j]);
      i += takes_a;
      j += takes_b;
    }
  });
  Tensor expected_values(dtype, {sum.size()});
  expected_values.copy(0, values, 0, sum.size());
  EXPECT(same_bits(r.out[0], sum.tensor()));
  EXPECT(same_numbers(r.out[1], expected_values));
  EXPECT(same_bits(r.out[2], shape));
}

// TensorFlow's walk along both operands and the sum: calls on(side, entry, k) for every match.
template <class On>
void walk_sum(const CoordinateList& a, const CoordinateList& b, const CoordinateList& sum, On&& on) {
  std::int64_t heads[2] = {0, 0};
  const CoordinateList* const lists[2] = {&a, &b};
  for (std::int64_t k = 0; k < sum.size() && (heads[0] < a.size() || heads[1] < b.size());) {
    bool waits = false;
    for (int side : {0, 1}) {
      std::int64_t& head = heads[side];
      if (head == lists[side]->size() || lists[side]->entries[head] > sum.entries[k]) continue;
      if (lists[side]->entries[head] == sum.entries[k])
        on(side, head, k);
      else
        waits = true;
      ++head;
    }
    k += !waits;
  }
}

void gradients(Input& in, DType dtype, std::int64_t rank) {
  const CoordinateList sum = list_of(in, rank);
  const CoordinateList a = in.flag() ? some_of(in, sum) : list_of(in, rank);
  const CoordinateList b = in.flag() ? some_of(in, sum) : list_of(in, rank);
  const Tensor grad = in.values(dtype, {sum.size()});
  const Tensor da = in.values(dtype, {a.size()}), db = in.values(dtype, {b.size()});
  const Result r = test::run("sparse_add_grad", {}, {grad, a.tensor(), b.tensor(), sum.tensor()}, [&](std::int64_t) {
    return std::vector<Tensor>{Tensor(dtype, {a.size()}), Tensor(dtype, {b.size()})};
  });
  const Result back = test::run("sparse_add_grad_grad", {}, {da, db, a.tensor(), b.tensor(), sum.tensor()},
                                [&](std::int64_t) { return std::vector<Tensor>{Tensor(dtype, {sum.size()})}; });
  if (!accepted(r, true) || !accepted(back, true)) return;
  Numbers64 of_a(a.entries.size(), -1), of_b(b.entries.size(), -1);
  Tensor expected(dtype, {sum.size()});
  std::vector<bool> matched(sum.entries.size());
  visit(Numbers{}, dtype, [&]<class T>(std::type_identity<T>) {
    walk_sum(a, b, sum, [&](int side, std::int64_t entry, std::int64_t k) {
      (side ? of_b : of_a)[entry] = k;
      const T value = (side ? db : da).as<T>()[entry];
      T* at = expected.as<T>() + k;
      *at = matched[k] ? store<T>(naive::added(load(*at), load(value))) : value;
      matched[k] = true;
    });
  });
  EXPECT(same_bits(r.out[0], picked(grad, of_a)));
  EXPECT(same_bits(r.out[1], picked(grad, of_b)));
  EXPECT(same_numbers(back.out[0], expected));
}

void one(Input& in) {
  const DType dtype = in.pick(Numbers::list());
  const std::int64_t rank = 1 + in.below(4);
  in.flag() ? add(in, dtype, rank) : gradients(in, dtype, rank);
}

}  // namespace

FUZZ_TARGET(one)
