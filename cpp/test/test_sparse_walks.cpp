// Lists long enough to be split into parts, sorted or not: slices, sums and filled rows match one sequential walk,
// wherever they are split.
#include "call.h"
#include "naive.h"
#include "rowgrad/coordinates.h"

using namespace test;

namespace {

constexpr std::int64_t kBase = 1 << 10;  // of the digits of a place
constexpr std::int64_t kLong = 70000;    // enough for several parts

std::int64_t size_of(const Numbers64& v) { return std::int64_t(v.size()); }

enum class List { distinct, repeats, long_runs, one_place, swapped_once, halves_swapped, ends_swapped, random };
constexpr List kLists[] = {List::distinct,     List::repeats,        List::long_runs,     List::one_place,
                           List::swapped_once, List::halves_swapped, List::ends_swapped, List::random};

// About n places, as numbers ordered like the coordinates they represent.
Numbers64 places_of(Rng& rng, List list, std::int64_t n) {
  if (list == List::one_place) return Numbers64(static_cast<std::size_t>(n), 77);
  if (list == List::random) return random_ids(rng, n, n);
  const std::int64_t bound = list == List::repeats ? n / 2 : list == List::long_runs ? 5 : 3 * n;
  Numbers64 places = sorted_ids(rng, n, bound);
  if (list == List::distinct) places.erase(std::unique(places.begin(), places.end()), places.end());
  if (list == List::swapped_once) std::swap(places[rng.below(n)], places[rng.below(n)]);
  if (list == List::halves_swapped) std::rotate(places.begin(), places.begin() + n / 2, places.end());
  if (list == List::ends_swapped) std::swap(places.front(), places.back());
  return places;
}

// The digits of every place, minus `start` in every dimension.
Tensor list_of(const Numbers64& places, std::int64_t rank, std::int64_t start = 0) {
  Tensor out(DType::int64, {size_of(places), rank});
  for (std::int64_t i = 0; i < size_of(places); ++i)
    for (std::int64_t d = rank - 1, p = places[i]; d >= 0; --d, p /= kBase)
      out.as<std::int64_t>()[i * rank + d] = (d > 0 ? p % kBase : p) - start;
  return out;
}

// Returns elements `from` of a vector, bit for bit; zero for position -1.
Tensor picked(const Tensor& values, const Numbers64& from) {
  Tensor out(values.dtype, {size_of(from)});
  for (std::int64_t i = 0; i < size_of(from); ++i)
    if (from[i] >= 0) out.copy(i, values, from[i]);
  return out;
}

// -- the gradient of a slice

Result match(const char* name, const Tensor& values, const Tensor& input, std::int64_t start, const Tensor& output,
             std::int64_t length) {
  const Numbers64 starts(static_cast<std::size_t>(input.cols()), start);
  return run_same(name, {}, {values, input, ids_of(starts), output},
                  [&](std::int64_t) { return std::vector<Tensor>{Tensor(values.dtype, {length})}; });
}

void check_match(Rng& rng, DType dtype, const Numbers64& input, const Numbers64& output, std::int64_t rank) {
  Numbers64 origin(input.size(), -1), selected;
  for (std::int64_t i = 0; i < size_of(input) && size_of(selected) < size_of(output); ++i)
    if (input[i] == output[size_of(selected)]) {
      origin[i] = size_of(selected);
      selected.push_back(i);
    }
  const std::int64_t start = 3, n = size_of(input), m = size_of(output);
  const Tensor from = list_of(input, rank), to = list_of(output, rank, start);
  const Tensor grad = random_tensor(rng, dtype, {m}), values = random_tensor(rng, dtype, {n});
  const Result r = match("sparse_slice_grad", grad, from, start, to, n);
  const Result back = match("sparse_slice_grad_grad", values, from, start, to, m);
  if (size_of(selected) < m) {
    EXPECT_FAULT(r, Fault::slice_left_over, -1, size_of(selected), m);
    EXPECT_FAULT(back, Fault::slice_left_over, -1, size_of(selected), m);
  } else {
    EXPECT_OUTPUT(r, 0, picked(grad, origin));
    EXPECT_OUTPUT(back, 0, picked(values, selected));
  }
}

void test_matches(Rng& rng, const Numbers64& input, std::int64_t rank) {
  Numbers64 box, some, last = {input.back()}, missing = input;
  for (std::int64_t place : input) {
    if (place % kBase < kBase / 2) box.push_back(place);
    if (rng.chance(3)) some.push_back(place);  // not from a slice, but the pass matches them
  }
  missing[rng.below(size_of(missing))] = 5 * kLarge;  // missing in the input: it and all that follow are left over
  for (const Numbers64& output : {box, some, last, missing, input}) check_match(rng, DType::float32, input, output, rank);
}

// -- sums

// The sources of a sum's entries: -1 if a side has no entry. All sums are kept.
struct Merged {
  Numbers64 places, from_a, from_b;
};

Merged merged(const Numbers64& a, const Numbers64& b) {
  Merged m;
  for (std::int64_t i = 0, j = 0; i < size_of(a) || j < size_of(b);) {
    const bool takes_a = j == size_of(b) || (i < size_of(a) && a[i] <= b[j]);
    const bool takes_b = i == size_of(a) || (j < size_of(b) && b[j] <= a[i]);
    m.places.push_back(takes_a ? a[i] : b[j]);
    m.from_a.push_back(takes_a ? i++ : -1);
    m.from_b.push_back(takes_b ? j++ : -1);
  }
  return m;
}

// TensorFlow's walk along both operands and the sum: calls on(side, entry, k) for every match.
template <class On>
void walk_sum(const Numbers64& a, const Numbers64& b, const Numbers64& sum, On&& on) {
  std::int64_t heads[2] = {0, 0};
  const Numbers64* const lists[2] = {&a, &b};
  for (std::int64_t k = 0; k < size_of(sum) && (heads[0] < size_of(a) || heads[1] < size_of(b));) {
    bool waits = false;
    for (int side : {0, 1}) {
      std::int64_t& head = heads[side];
      if (head == size_of(*lists[side]) || (*lists[side])[head] > sum[k]) continue;
      if ((*lists[side])[head] == sum[k])
        on(side, head, k);
      else
        waits = true;
      ++head;
    }
    k += !waits;
  }
}

void check_add_grads(Rng& rng, const Numbers64& a, const Numbers64& b, const Numbers64& sum, std::int64_t rank) {
  const Tensor grad = random_tensor(rng, DType::float32, {size_of(sum)});
  const Tensor da = random_tensor(rng, DType::int32, {size_of(a)}), db = random_tensor(rng, DType::int32, {size_of(b)});
  Numbers64 of_a(a.size(), -1), of_b(b.size(), -1);
  Tensor back(DType::int32, {size_of(sum)});
  walk_sum(a, b, sum, [&](int side, std::int64_t entry, std::int64_t k) {
    (side ? of_b : of_a)[entry] = k;
    std::int32_t* at = back.as<std::int32_t>() + k;
    *at = naive::added(*at, (side ? db : da).as<std::int32_t>()[entry]);
  });
  const Tensor am = list_of(a, rank), bm = list_of(b, rank), sm = list_of(sum, rank);
  const Result r = run_same("sparse_add_grad", {}, {grad, am, bm, sm}, [&](std::int64_t) {
    return std::vector<Tensor>{Tensor(grad.dtype, {size_of(a)}), Tensor(grad.dtype, {size_of(b)})};
  });
  EXPECT_OUTPUT(r, 0, picked(grad, of_a));
  EXPECT_OUTPUT(r, 1, picked(grad, of_b));
  EXPECT_OUTPUT(run_same("sparse_add_grad_grad", {}, {da, db, am, bm, sm},
                         [&](std::int64_t) { return std::vector<Tensor>{Tensor(DType::int32, {size_of(sum)})}; }),
                0, back);
}

void check_add(Rng& rng, const Numbers64& a, const Numbers64& b, std::int64_t rank) {
  const Tensor av = random_tensor(rng, DType::int32, {size_of(a)}), bv = random_tensor(rng, DType::int32, {size_of(b)});
  const std::int32_t least = rng.chance(2) ? 0 : 1 << 30;  // drops about half of the sums of two
  Tensor thresh = scalar_of(least, false);
  Merged m = merged(a, b), selected;
  Numbers64 sums;
  for (std::int64_t k = 0; k < size_of(m.places); ++k) {
    const std::int64_t i = m.from_a[k], j = m.from_b[k];
    const auto x = i < 0 ? 0 : av.as<std::int32_t>()[i], y = j < 0 ? 0 : bv.as<std::int32_t>()[j];
    const auto sum = naive::added(x, y);
    if (i >= 0 && j >= 0 && (sum == INT32_MIN ? sum : std::abs(sum)) < least) continue;
    selected.places.push_back(m.places[k]);
    sums.push_back(sum);
  }
  const Tensor shape = ids_of(Numbers64(static_cast<std::size_t>(rank), 50));
  const Result r = run_same("sparse_add", {}, {list_of(a, rank), av, shape, list_of(b, rank), bv, shape, thresh},
                            [&](std::int64_t rows) {
                              return std::vector<Tensor>{Tensor(DType::int64, {rows, rank}),
                                                         Tensor(DType::int32, {rows}), shape};
                            });
  EXPECT_OUTPUT(r, 0, list_of(selected.places, rank));
  EXPECT_OUTPUT(r, 1, ids_of(sums, false));
  check_add_grads(rng, a, b, selected.places, rank);
}

// -- empty rows

void check_fill(Rng& rng, const Numbers64& row_ids, std::int64_t rank) {
  const std::int64_t n = size_of(row_ids), rows = *std::max_element(row_ids.begin(), row_ids.end()) + 1 + kLarge;
  const naive::Groups groups(row_ids, rows);
  const Tensor values = random_tensor(rng, DType::float32, {n}), fallback = random_tensor(rng, DType::float32, {});
  Tensor indices(DType::int64, {n, rank}), empty(DType::bool_, {rows}), map(DType::int64, {n});
  for (std::int64_t i = 0; i < n * rank; ++i)
    indices.as<std::int64_t>()[i] = i % rank == 0 ? row_ids[i / rank] : rng.below(100);
  Numbers64 sources;  // of each output entry: the moved entry, or for a filled row -1 - row
  for (std::int64_t r = 0; r < rows; ++r) {
    if (groups.size(r) == 0) sources.push_back(-1 - r);
    empty.as<bool>()[r] = groups.size(r) == 0;
    for (std::int64_t g = groups.start[r]; g < groups.start[r + 1]; ++g) {
      map.as<std::int64_t>()[groups.at[g]] = size_of(sources);
      sources.push_back(groups.at[g]);
    }
  }
  Tensor out_indices(DType::int64, {size_of(sources), rank}), out_values(DType::float32, {size_of(sources)});
  for (std::int64_t k = 0; k < size_of(sources); ++k) {
    if (sources[k] < 0) out_indices.as<std::int64_t>()[k * rank] = -1 - sources[k];
    if (sources[k] >= 0) out_indices.copy(k * rank, indices, sources[k] * rank, rank);
    out_values.copy(k, sources[k] < 0 ? fallback : values, std::max<std::int64_t>(sources[k], 0));
  }
  Numbers64 shape(static_cast<std::size_t>(rank), 100);
  shape[0] = rows;
  const Result r = run_same("fill_empty_rows", {}, {indices, values, ids_of(shape), fallback}, [&](std::int64_t total) {
    return std::vector<Tensor>{Tensor(DType::int64, {total, rank}), Tensor(DType::float32, {total}),
                               Tensor(DType::bool_, {rows}), Tensor(DType::int64, {n})};
  });
  EXPECT_OUTPUT(r, 0, out_indices);
  EXPECT_OUTPUT(r, 1, out_values);
  EXPECT_OUTPUT(r, 2, empty);
  EXPECT_OUTPUT(r, 3, map);
}

// Any list of positions is a valid map: unmapped positions are summed from first to last, in T.
void check_fill_grads(Rng& rng, DType dtype, const Numbers64& map) {
  const std::int64_t length = *std::max_element(map.begin(), map.end()) + 1 + rng.below(3);
  const naive::Groups entries_at(map, length);
  const Tensor grad = random_tensor(rng, dtype, {length}), values = random_tensor(rng, dtype, {size_of(map)});
  const Tensor fallback = random_tensor(rng, dtype, {});
  Tensor rest(dtype, {}), back(dtype, {length});
  visit(Numbers{}, dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t j = 0; j < length; ++j) {
      if (entries_at.size(j) == 0) *rest.as<T>() = store<T>(naive::added(load(*rest.as<T>()), load(grad.as<T>()[j])));
      const bool is_mapped = entries_at.size(j) > 0;
      back.copy(j, is_mapped ? values : fallback, is_mapped ? entries_at.at[entries_at.start[j]] : 0);
      if (entries_at.size(j) < 2) continue;
      auto sum = load(back.as<T>()[j]);
      for (std::int64_t g = entries_at.start[j] + 1; g < entries_at.start[j + 1]; ++g)
        sum = naive::added(sum, load(values.as<T>()[entries_at.at[g]]));
      back.as<T>()[j] = store<T>(sum);
    }
  });
  const Result r = run_same("fill_empty_rows_grad", {}, {ids_of(map), grad}, [&](std::int64_t) {
    return std::vector<Tensor>{Tensor(dtype, {size_of(map)}), Tensor(dtype, {})};
  });
  EXPECT_OUTPUT(r, 0, picked(grad, map));
  EXPECT_OUTPUT(r, 1, rest);
  EXPECT_OUTPUT(run_same("fill_empty_rows_grad_grad", {}, {ids_of(map), values, fallback, grad},
                         [&](std::int64_t) { return std::vector<Tensor>{Tensor(dtype, {length})}; }),
                0, back);
}

void test_fill(Rng& rng, List list, const Numbers64& places) {
  check_fill(rng, places, 2);
  check_fill_grads(rng, DType::float32, places);
  if (list != List::distinct) return;
  check_fill_grads(rng, DType::bfloat16, places);
  // Ascends to its last entry, which is out of range.
  Numbers64 beyond = places;
  beyond.back() = 4 * kLarge;
  const Tensor grad(DType::float32, {4 * kLarge});
  const Result r = run_same("fill_empty_rows_grad", {}, {ids_of(beyond), grad},
                            [](std::int64_t) { return std::vector<Tensor>{}; });
  EXPECT_FAULT(r, Fault::reverse_index_not_in_grad, size_of(beyond) - 1, 4 * kLarge, 4 * kLarge);
}

// Sums with fewer entries than a walk along long lists has parts.
void test_short_sums(Rng& rng) {
  const auto a = places_of(rng, List::distinct, kLong / 2), b = places_of(rng, List::distinct, kLong / 2);
  for (const Numbers64& sum : {Numbers64{}, Numbers64{a[a.size() / 2]}, Numbers64{b[0], b.back()}})
    check_add_grads(rng, a, b, sum, 2);
}

// A walk that adds up the numbers of its parts: every guess but the first is wrong, and one part returns nothing at
// first.
void test_wrong_guesses() {
  for (int threads : {1, 3}) {
    set_num_threads(threads);
    Numbers64 state(9, -5);
    state[0] = 0;
    std::vector<int> alone(8);
    walk_in_parts(state, [&](std::int64_t part, bool alone_now) -> std::optional<std::int64_t> {
      alone[part] += alone_now;
      if (part == 5 && !alone_now) return {};
      return state[part] + part;
    });
    for (std::int64_t part = 0; part <= 8; ++part) EXPECT_EQ(state[part], part * (part - 1) / 2);
    for (std::int64_t part = 0; part < 8; ++part) EXPECT_EQ(alone[part], part > 0);
  }
}

}  // namespace

int main() {
  const FlushSubnormals flush;
  Rng rng(9);
  test_wrong_guesses();
  test_short_sums(rng);
  for (List list : kLists) {
    const Where where("list", {{"kind", int(list)}});
    const auto a = places_of(rng, list, kLong);
    for (std::int64_t rank : {1, 2, 3})
      if (!kSanitized || rank == 2) test_matches(rng, a, rank);
    for (List other : kLists) {
      if (kSanitized && !rng.chance(4)) continue;
      const std::int64_t rank = rng.between(1, 3);
      const Where where_other("and", {{"kind", int(other)}, {"rank", rank}});
      const auto b = places_of(rng, other, rng.chance(2) ? kLong : kLong / 4);
      check_add(rng, a, b, rank);
      if (!kSanitized) check_add_grads(rng, a, b, places_of(rng, list, kLong), rank);  // need not be the real sum
    }
    test_fill(rng, list, places_of(rng, list, kLarge));
  }
  set_num_threads(1);
  return test::finish();
}
