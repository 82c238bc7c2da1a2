// Bags by offsets, stacked bags of many features and square roots, against one id at a time.
#include "rowgrad/bag_ids.h"

#include <cmath>

#include "call.h"
#include "rowgrad/elementwise.h"

using namespace test;

namespace {

// Returns where `bags` bags of n ids begin, then n.
Numbers64 random_offsets(Rng& rng, std::int64_t bags, std::int64_t n) {
  Numbers64 offsets = sorted_ids(rng, bags, n + 1);
  if (bags > 0) offsets[0] = 0;
  offsets.push_back(n);
  return offsets;
}

Result segment_ids(const Numbers64& offsets, std::int64_t n, bool has_end, bool wide = true) {
  const DType dtype = wide ? DType::int64 : DType::int32;
  return run_same("segment_ids_from_offsets", {has_end}, {ids_of(offsets, wide), scalar_of(n)},
                  [=](std::int64_t) { return std::vector<Tensor>{Tensor(dtype, {n})}; });
}

Result stack(const Numbers64& ids, const Numbers64& offsets, const Numbers64& rows, const Numbers64& first,
             bool positions, bool wide = true) {
  const DType dtype = wide ? DType::int64 : DType::int32;
  const auto n = std::int64_t(ids.size());
  return run_same("stack_bags", {positions}, {ids_of(ids, wide), ids_of(offsets), ids_of(rows), ids_of(first)},
                  [=](std::int64_t) {
                    return std::vector<Tensor>{Tensor(dtype, {n}), Tensor(DType::int64, {n}),
                                               Tensor(DType::int64, {positions ? n : 0})};
                  });
}

void check_segment_ids(Rng& rng, std::int64_t bags, std::int64_t n) {
  const Where where("segment ids", {{"bags", bags}, {"n", n}});
  Numbers64 offsets = random_offsets(rng, bags, n), expected;
  for (std::int64_t b = 0; b < bags; ++b) expected.resize(static_cast<std::size_t>(offsets[b + 1]), b);
  const bool wide = rng.chance(2);
  EXPECT_OUTPUT(segment_ids(offsets, n, true, wide), 0, ids_of(expected, wide));
  offsets.pop_back();
  EXPECT_OUTPUT(segment_ids(offsets, n, false, wide), 0, ids_of(expected, wide));
}

void check_stack(Rng& rng, std::int64_t features, std::int64_t examples, std::int64_t n) {
  const Where where("stack", {{"features", features}, {"examples", examples}, {"n", n}});
  const Numbers64 offsets = random_offsets(rng, features * examples, n);
  Numbers64 rows, first, ids;
  for (std::int64_t f = 0; f < features; ++f) {
    rows.push_back(1 + random_ids(rng, 1, 9)[0]);
    first.push_back(random_ids(rng, 1, 100)[0]);
    const std::int64_t count = offsets[(f + 1) * examples] - offsets[f * examples];
    for (const std::int64_t id : random_ids(rng, count, rows.back())) ids.push_back(id);
  }
  Numbers64 stacked, segments, positions;
  for (std::int64_t b = 0; b < examples; ++b)
    for (std::int64_t f = 0; f < features; ++f)
      for (std::int64_t i = offsets[f * examples + b]; i < offsets[f * examples + b + 1]; ++i) {
        stacked.push_back(ids[i] + first[f]);
        segments.push_back(b * features + f);
        positions.push_back(i);
      }
  const bool wide = rng.chance(2);
  const Result all = stack(ids, offsets, rows, first, true, wide);
  EXPECT_OUTPUT(all, 0, ids_of(stacked, wide));
  EXPECT_OUTPUT(all, 1, ids_of(segments));
  EXPECT_OUTPUT(all, 2, ids_of(positions));
  EXPECT_OUTPUT(stack(ids, offsets, rows, first, false, wide), 2, ids_of({}));
}

void check_faults() {
  EXPECT_FAULT(segment_ids({1, 2}, 5, false), Fault::offsets_begin, 0, 1, 0);
  EXPECT_FAULT(segment_ids({0, 3, 2}, 5, false), Fault::offsets_fall, 2, 2, 3);
  EXPECT_FAULT(segment_ids({0, 6}, 5, false), Fault::offsets_end, 1, 6, 5);
  EXPECT_FAULT(segment_ids({0, 4}, 5, true), Fault::offsets_end, 1, 4, 5);
  EXPECT_FAULT(segment_ids({}, 5, false), Fault::offsets_end, -1, 0, 5);
  EXPECT_FAULT(segment_ids({}, 0, true), Fault::offsets_end, -1, 0, 0);
  EXPECT_FAULT(stack({0, 2}, {0, 1, 2}, {1, 2}, {0, 1}, false), Fault::id_not_in_feature, 1, 2, 2);
  EXPECT_FAULT(stack({-1}, {0, 1}, {3}, {0}, false), Fault::id_not_in_feature, 0, -1, 3);
  EXPECT_FAULT(stack({0}, {0, 1}, {-3}, {0}, false), Fault::feature_negative, 0, -3, 0);
  constexpr std::int64_t last = std::numeric_limits<std::int32_t>::max();
  EXPECT_FAULT(stack({0}, {0, 1}, {2}, {last}, false, false), Fault::feature_too_far, 0, last, last - 2);
  EXPECT_FAULT(stack({0}, {0, 1}, {3}, {-2}, false), Fault::feature_negative, 0, -2, 0);
  EXPECT_FAULT(stack({0, 0}, {0, 1}, {3}, {0}, false), Fault::offsets_end, 1, 1, 2);
  EXPECT_OUTPUT(stack({}, {0}, {4}, {0}, false), 0, ids_of({}));
  EXPECT_OUTPUT(stack({}, {0}, {}, {}, true), 2, ids_of({}));  // no features
}

void check_roots(Rng& rng) {
  for (const DType dtype : Floats::list()) {
    const Tensor x = random_tensor(rng, dtype, {40000});
    const Result r = run_same("sqrt", {}, {x}, [&](std::int64_t) { return std::vector<Tensor>{Tensor(dtype, {40000})}; });
    visit(Floats{}, dtype, [&]<class T>(std::type_identity<T>) {
      const FlushSubnormals flush;
      for (std::int64_t i = 0; i < x.size(); ++i) {
        const auto root = std::sqrt(load(x.as<T>()[i])), got = load(r.out[0].as<T>()[i]);
        const auto rounded = load(store<T>(root));
        EXPECT_EQ(got == rounded || (std::isnan(got) && std::isnan(rounded)), true);
      }
    });
  }
}

}  // namespace

int main() {
  Rng rng(17);
  for (std::int64_t bags : {0, 1, 2, 7, 40})
    for (std::int64_t n : {0, 1, 5, 300})
      if (bags > 0 || n == 0) check_segment_ids(rng, bags, n);
  check_segment_ids(rng, 1000, kLarge);
  check_segment_ids(rng, kLarge, kLarge / 3);
  for (std::int64_t features : {1, 2, 5})
    for (std::int64_t examples : {1, 3, 20})
      for (std::int64_t n : {0, 1, 50}) check_stack(rng, features, examples, n);
  check_stack(rng, 26, 300, kLarge);
  check_faults();
  check_roots(rng);
  set_num_threads(1);
  return test::finish();
}
