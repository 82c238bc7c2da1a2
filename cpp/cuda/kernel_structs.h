// Parameters of CUDA kernels, written by tools/gen_headers.py from src/rowgrad/cuda/source. Do not edit.
#pragma once
#include <cstdint>
#include <initializer_list>

namespace rowgrad::cuda {

using Address = std::uint64_t;  // of device memory

struct CheckOffsets {
  static constexpr const char* kernel = "check_offsets";
  Address offsets = 0;
  std::int64_t wide = 0;
  std::int64_t size = 0;
  std::int64_t ids = 0;
  std::int64_t has_end = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct SegmentIdsOfOffsets {
  static constexpr const char* kernel = "segment_ids_of_offsets";
  Address offsets = 0;
  std::int64_t wide = 0;
  std::int64_t bags = 0;
  std::int64_t ids = 0;
  Address segments = 0;
  Address checks = 0;
};

struct CheckBags {
  static constexpr const char* kernel = "check_bags";
  Address indices = 0;
  std::int64_t wide_indices = 0;
  Address offsets = 0;
  std::int64_t wide_offsets = 0;
  Address feature_rows = 0;
  Address feature_first = 0;
  std::int64_t ids = 0;
  std::int64_t features = 0;
  std::int64_t examples = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct StackedStarts {
  static constexpr const char* kernel = "stacked_starts";
  Address offsets = 0;
  std::int64_t wide = 0;
  std::int64_t features = 0;
  std::int64_t examples = 0;
  Address starts = 0;
  Address checks = 0;
};

struct StackBags {
  static constexpr const char* kernel = "stack_bags";
  Address indices = 0;
  std::int64_t wide_indices = 0;
  Address offsets = 0;
  std::int64_t wide_offsets = 0;
  Address feature_first = 0;
  std::int64_t ids = 0;
  std::int64_t features = 0;
  std::int64_t examples = 0;
  Address starts = 0;
  Address stacked = 0;
  Address segments = 0;
  Address positions = 0;
  Address checks = 0;
};

struct PutNumbers {
  static constexpr const char* kernel = "put_numbers";
  Address to = 0;
  std::int64_t count = 0;
  std::int64_t n0 = 0;
  std::int64_t n1 = 0;
  std::int64_t n2 = 0;
  std::int64_t n3 = 0;
  std::int64_t n4 = 0;
  std::int64_t n5 = 0;
  std::int64_t n6 = 0;
  std::int64_t n7 = 0;
};

struct Roots {
  static constexpr const char* kernel = "roots";
  Address x = 0;
  Address roots = 0;
  std::int64_t size = 0;
};

struct FeatureEntry {
  Address data = 0;
  std::int64_t rows = 0;
  std::int64_t reduce = 0;
  Address out = 0;
  Address ids = 0;
  std::int64_t ids_wide = 0;
  Address offsets = 0;
  std::int64_t offsets_wide = 0;
  std::int64_t size = 0;
  std::int64_t row_first = 0;
  std::int64_t segment_first = 0;
  std::int64_t entry_first = 0;
};

struct SelectionEntry {
  std::int64_t reader = 0;
  std::int64_t readers = 0;
  std::int64_t padding = 0;
  Address kept = 0;
};

struct ListsEntry {
  Address rows = 0;
  Address segments = 0;
  std::int64_t ignored_row = 0;
};

struct PutWords {
  static constexpr const char* kernel = "put_words";
  Address to = 0;
  std::int64_t count = 0;
  std::int64_t words[480] = {};
};

struct SumFeatureBags {
  static constexpr const char* kernel = "sum_feature_bags";
  Address features = 0;
  Address selections = 0;
  Address lists = 0;
  std::int64_t count_lists = 0;
  std::int64_t count = 0;
  Address members = 0;
  std::int64_t blocks = 0;
  std::int64_t columns = 0;
  std::int64_t lanes = 0;
  std::int64_t stride = 0;
  std::int64_t bags = 0;
  std::int64_t block_bags = 0;
  std::int64_t capacity = 0;
  std::int64_t has_end = 0;
  std::int64_t joined = 0;
  std::int64_t entries = 0;
  std::int64_t ignored_row = 0;
  Address rows = 0;
  Address segments = 0;
  Address scales = 0;
  Address failed = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct FillCount {
  static constexpr const char* kernel = "fill_count";
  Address ids = 0;
  std::int64_t step = 0;
  std::int64_t size = 0;
  std::int64_t rows = 0;
  Address counts = 0;
  Address order = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct FillEntries {
  static constexpr const char* kernel = "fill_entries";
  Address ids = 0;
  std::int64_t step = 0;
  std::int64_t size = 0;
  Address order = 0;
  Address counts = 0;
  Address indices = 0;
  std::int64_t columns = 0;
  Address values = 0;
  Address to_indices = 0;
  Address to_values = 0;
  Address map = 0;
  Address checks = 0;
};

struct FillRows {
  static constexpr const char* kernel = "fill_rows";
  Address ids = 0;
  std::int64_t step = 0;
  std::int64_t size = 0;
  Address order = 0;
  Address map = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  Address default_value = 0;
  Address to_indices = 0;
  Address to_values = 0;
  Address empty = 0;
  Address checks = 0;
};

struct NamePositions {
  static constexpr const char* kernel = "name_positions";
  Address map = 0;
  std::int64_t size = 0;
  std::int64_t positions = 0;
  Address named = 0;
  Address twice = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct CountUnnamed {
  static constexpr const char* kernel = "count_unnamed";
  Address named = 0;
  std::int64_t positions = 0;
  Address counts = 0;
};

struct SplitGrad {
  static constexpr const char* kernel = "split_grad";
  Address map = 0;
  std::int64_t size = 0;
  Address grad = 0;
  Address named = 0;
  std::int64_t positions = 0;
  Address counts = 0;
  Address values = 0;
  Address rest = 0;
  Address checks = 0;
};

struct AddRest {
  static constexpr const char* kernel = "add_rest";
  Address rest = 0;
  Address size = 0;
  Address sum = 0;
  Address checks = 0;
};

struct AddRestIntegers {
  static constexpr const char* kernel = "add_rest_integers";
  Address rest = 0;
  Address size = 0;
  Address sum = 0;
  Address checks = 0;
};

struct FillListedRows {
  static constexpr const char* kernel = "fill_listed_rows";
  Address map = 0;
  std::int64_t size = 0;
  Address values = 0;
  Address default_value = 0;
  Address named = 0;
  std::int64_t positions = 0;
  Address to = 0;
  Address twice = 0;
  Address checks = 0;
};

struct AddNamed {
  static constexpr const char* kernel = "add_named";
  Address map = 0;
  std::int64_t size = 0;
  Address values = 0;
  Address named = 0;
  Address sums = 0;
  Address to = 0;
  Address twice = 0;
  Address checks = 0;
};

struct CheckGather {
  static constexpr const char* kernel = "check_gather";
  Address ids = 0;
  std::int64_t wide = 0;
  std::int64_t size = 0;
  std::int64_t bound = 0;
  std::int64_t code = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct GatherRows {
  static constexpr const char* kernel = "gather_rows";
  Address source = 0;
  Address to = 0;
  Address ids = 0;
  std::int64_t wide = 0;
  std::int64_t size = 0;
  std::int64_t row_units = 0;
  Address checks = 0;
};

struct ExpandPlan {
  static constexpr const char* kernel = "expand_plan";
  Address rows = 0;
  std::int64_t wide_rows = 0;
  std::int64_t num_rows = 0;
  Address starts = 0;
  std::int64_t listed = 0;
  Address segments = 0;
  std::int64_t wide_segments = 0;
  Address positions = 0;
  Address counts = 0;
  std::int64_t num_segments = 0;
  std::int64_t size = 0;
  std::int64_t reduce = 0;
  Address ids = 0;
  Address values = 0;
  Address scales = 0;
  Address heads = 0;
  Address firsts = 0;
  Address begins = 0;
  Address rows_out = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct PlaceSegments {
  static constexpr const char* kernel = "place_segments";
  Address segments = 0;
  std::int64_t wide_segments = 0;
  Address positions = 0;
  std::int64_t size = 0;
  Address placed = 0;
  Address checks = 0;
};

struct TakeSegments {
  static constexpr const char* kernel = "take_segments";
  Address placed = 0;
  std::int64_t size = 0;
  Address segments = 0;
  Address checks = 0;
};

struct CheckPlanArrays {
  static constexpr const char* kernel = "check_plan_arrays";
  Address rows = 0;
  std::int64_t wide_rows = 0;
  std::int64_t num_rows = 0;
  Address starts = 0;
  std::int64_t listed = 0;
  Address segments = 0;
  std::int64_t wide_segments = 0;
  Address positions = 0;
  std::int64_t size = 0;
  std::int64_t num_segments = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct PlannedIds {
  static constexpr const char* kernel = "planned_ids";
  Address rows = 0;
  std::int64_t wide_rows = 0;
  Address starts = 0;
  std::int64_t listed = 0;
  Address segments = 0;
  std::int64_t wide_segments = 0;
  Address positions = 0;
  std::int64_t size = 0;
  Address seen = 0;
  Address found = 0;
  Address indices = 0;
  Address segment_ids = 0;
  Address before = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct CheckPlanCounts {
  static constexpr const char* kernel = "check_plan_counts";
  Address counts = 0;
  Address found = 0;
  std::int64_t num_segments = 0;
  Address arrays = 0;
  Address entries = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct PoisonResults {
  static constexpr const char* kernel = "poison_results";
  Address out = 0;
  std::int64_t size = 0;
  std::int64_t poison = 0;
  Address checks = 0;
};

struct CheckPairs {
  static constexpr const char* kernel = "check_pairs";
  Address indices = 0;
  std::int64_t wide_indices = 0;
  std::int64_t data_rows = 0;
  Address segments = 0;
  std::int64_t wide_segments = 0;
  std::int64_t grad_rows = 0;
  std::int64_t size = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct RowDots {
  static constexpr const char* kernel = "row_dots";
  Address x = 0;
  Address x_ids = 0;
  std::int64_t x_wide = 0;
  Address y = 0;
  Address y_ids = 0;
  std::int64_t y_wide = 0;
  std::int64_t size = 0;
  std::int64_t cols = 0;
  Address dots = 0;
  Address checks = 0;
};

struct RowPositions {
  static constexpr const char* kernel = "row_positions";
  Address list = 0;
  std::int64_t wide_list = 0;
  std::int64_t listed = 0;
  Address ids = 0;
  std::int64_t wide_ids = 0;
  std::int64_t size = 0;
  Address positions = 0;
  std::int64_t wide_positions = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct PadRows {
  static constexpr const char* kernel = "pad_rows";
  Address rows = 0;
  Address ids = 0;
  std::int64_t wide_ids = 0;
  Address total = 0;
  std::int64_t size = 0;
  std::int64_t cols = 0;
  std::int64_t fill_id = 0;
  std::int64_t poisons = 0;
  std::int64_t row_poison = 0;
  std::int64_t id_poison = 0;
  Address checks = 0;
};

struct PadRowGradient {
  static constexpr const char* kernel = "pad_row_gradient";
  Address values = 0;
  std::int64_t units = 0;
  Address ids = 0;
  Address total = 0;
  Address count = 0;
  std::int64_t size = 0;
  Address checks = 0;
};

struct WritePlan {
  static constexpr const char* kernel = "write_plan";
  Address sorted_positions = 0;
  Address segment_ids = 0;
  std::int64_t wide_segments = 0;
  std::int64_t size = 0;
  Address found = 0;
  std::int64_t num_segments = 0;
  Address segments = 0;
  Address positions = 0;
  Address counts = 0;
  Address checks = 0;
};

struct StepRows {
  static constexpr const char* kernel = "step_rows";
  Address table = 0;
  Address slot0 = 0;
  Address slot1 = 0;
  std::int64_t cols = 0;
  double lr = 0;
  double eps = 0;
  double weight_decay = 0;
  double beta1 = 0;
  double beta2 = 0;
  double rate = 0;
  double momentum = 0;
  double nesterov = 0;
  double lr_power = 0;
  double l1 = 0;
  double l2 = 0;
  double l2_shrinkage = 0;
  std::int64_t random = 0;
  std::int64_t seed = 0;
  std::int64_t step = 0;
  Address live = 0;
  std::int64_t lanes = 0;
  Address grad = 0;
  Address ids = 0;
  std::int64_t wide = 0;
  std::int64_t size = 0;
  Address count = 0;
  Address starts = 0;
  std::int64_t entries = 0;
  Address bags = 0;
  Address segments = 0;
  Address scales = 0;
  Address checks = 0;
};

struct ScanParts {
  static constexpr const char* kernel = "scan_parts";
  Address counts = 0;
  std::int64_t parts = 0;
  Address unless = 0;
};

struct SortCount {
  static constexpr const char* kernel = "sort_count";
  Address keys = 0;
  std::int64_t step = 0;
  std::int64_t size = 0;
  std::int64_t shift = 0;
  Address counts = 0;
};

struct SortMove {
  static constexpr const char* kernel = "sort_move";
  Address keys = 0;
  std::int64_t step = 0;
  Address order = 0;
  std::int64_t size = 0;
  std::int64_t shift = 0;
  Address counts = 0;
  Address to_keys = 0;
  Address to_order = 0;
};

struct SumBags {
  static constexpr const char* kernel = "sum_bags";
  Address data = 0;
  Address out = 0;
  std::int64_t columns = 0;
  std::int64_t lanes = 0;
  Address ids = 0;
  std::int64_t ids_wide = 0;
  Address segments = 0;
  std::int64_t segments_wide = 0;
  std::int64_t size = 0;
  std::int64_t rows = 0;
  std::int64_t bags = 0;
  std::int64_t block_bags = 0;
  std::int64_t capacity = 0;
  std::int64_t reduce = 0;
  std::int64_t poison = 0;
  std::int64_t poisons = 0;
  Address earlier = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct SumOffsetBags {
  static constexpr const char* kernel = "sum_offset_bags";
  Address data = 0;
  Address out = 0;
  std::int64_t columns = 0;
  std::int64_t lanes = 0;
  Address ids = 0;
  std::int64_t ids_wide = 0;
  Address offsets = 0;
  std::int64_t offsets_wide = 0;
  std::int64_t has_end = 0;
  std::int64_t size = 0;
  std::int64_t rows = 0;
  std::int64_t bags = 0;
  std::int64_t block_bags = 0;
  std::int64_t capacity = 0;
  std::int64_t reduce = 0;
  Address segments = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct SumRows {
  static constexpr const char* kernel = "sum_rows";
  Address grad = 0;
  Address out = 0;
  std::int64_t cols = 0;
  std::int64_t lanes = 0;
  Address ids = 0;
  Address segments = 0;
  Address scales = 0;
  Address divisors = 0;
  Address heads = 0;
  Address firsts = 0;
  Address begins = 0;
  std::int64_t size = 0;
  std::int64_t run_shift = 0;
  std::int64_t unique = 0;
  Address partials = 0;
  Address lefts = 0;
  Address left_count = 0;
  Address checks = 0;
};

struct JoinRuns {
  static constexpr const char* kernel = "join_runs";
  Address out = 0;
  std::int64_t cols = 0;
  std::int64_t lanes = 0;
  Address lefts = 0;
  Address left_count = 0;
  Address partials = 0;
  Address arrivals = 0;
  Address checks = 0;
};

struct CheckSegments {
  static constexpr const char* kernel = "check_segments";
  Address segments = 0;
  std::int64_t wide = 0;
  std::int64_t size = 0;
  std::int64_t rows = 0;
  Address bounds = 0;
  Address before = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct SumSegments {
  static constexpr const char* kernel = "sum_segments";
  Address data = 0;
  std::int64_t cols = 0;
  Address bounds = 0;
  std::int64_t rows = 0;
  std::int64_t longest = 0;
  Address found = 0;
  std::int64_t log_lanes = 0;
  Address out = 0;
  Address checks = 0;
};

struct SumLongSegments {
  static constexpr const char* kernel = "sum_long_segments";
  Address data = 0;
  std::int64_t cols = 0;
  Address bounds = 0;
  Address found = 0;
  Address out = 0;
  Address checks = 0;
};

struct ScanIds {
  static constexpr const char* kernel = "scan_ids";
  Address ids = 0;
  std::int64_t ids_wide = 0;
  Address segments = 0;
  std::int64_t segments_wide = 0;
  std::int64_t size = 0;
  std::int64_t rows = 0;
  std::int64_t sources = 0;
  std::int64_t passes = 0;
  std::int64_t bits = 0;
  Address histograms = 0;
  Address counts = 0;
  std::int64_t order = 0;
  std::int64_t id_code = 0;
  std::int64_t segment_code = 0;
  Address needed = 0;
  Address earlier = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct SortPass {
  static constexpr const char* kernel = "sort_pass";
  Address ids = 0;
  std::int64_t ids_wide = 0;
  Address values = 0;
  std::int64_t values_wide = 0;
  Address pairs = 0;
  Address sorted = 0;
  Address sorted_ids = 0;
  Address sorted_values = 0;
  std::int64_t size = 0;
  std::int64_t shift = 0;
  std::int64_t bits = 0;
  Address histogram = 0;
  Address states = 0;
  Address counts = 0;
  Address segment_scales = 0;
  std::int64_t sources = 0;
  std::int64_t reduce = 0;
  Address checks = 0;
};

struct FindRows {
  static constexpr const char* kernel = "find_rows";
  Address ids = 0;
  std::int64_t size = 0;
  Address heads = 0;
  Address firsts = 0;
  Address begins = 0;
  Address states = 0;
  Address total = 0;
  Address host_total = 0;
  Address rows = 0;
  std::int64_t rows_wide = 0;
  Address starts = 0;
  Address segments = 0;
  Address segment_scales = 0;
  Address scales = 0;
  std::int64_t most_rows = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct CheckOrder {
  static constexpr const char* kernel = "check_order";
  Address a = 0;
  std::int64_t a_rows = 0;
  Address b = 0;
  std::int64_t b_rows = 0;
  Address sum = 0;
  std::int64_t sum_rows = 0;
  std::int64_t rank = 0;
  std::int64_t repeats = 0;
  Address order = 0;
};

struct AddSteps {
  static constexpr const char* kernel = "add_steps";
  Address a = 0;
  Address a_values = 0;
  std::int64_t a_rows = 0;
  Address b = 0;
  Address b_values = 0;
  std::int64_t b_rows = 0;
  std::int64_t rank = 0;
  Address thresh = 0;
  Address steps = 0;
  Address order = 0;
};

struct AddCount {
  static constexpr const char* kernel = "add_count";
  Address steps = 0;
  std::int64_t size = 0;
  Address counts = 0;
};

struct AddMove {
  static constexpr const char* kernel = "add_move";
  Address a = 0;
  Address a_values = 0;
  Address b = 0;
  Address b_values = 0;
  std::int64_t rank = 0;
  Address steps = 0;
  std::int64_t size = 0;
  Address counts = 0;
  Address to_indices = 0;
  Address to_values = 0;
};

struct AddGrad {
  static constexpr const char* kernel = "add_grad";
  Address grad = 0;
  Address a = 0;
  std::int64_t a_rows = 0;
  Address b = 0;
  std::int64_t b_rows = 0;
  Address sum = 0;
  std::int64_t sum_rows = 0;
  std::int64_t rank = 0;
  Address to_a = 0;
  Address to_b = 0;
  Address order = 0;
};

struct AddGradGrad {
  static constexpr const char* kernel = "add_grad_grad";
  Address da = 0;
  Address db = 0;
  Address a = 0;
  std::int64_t a_rows = 0;
  Address b = 0;
  std::int64_t b_rows = 0;
  Address sum = 0;
  std::int64_t sum_rows = 0;
  std::int64_t rank = 0;
  Address to = 0;
  Address order = 0;
};

struct SliceCount {
  static constexpr const char* kernel = "slice_count";
  Address indices = 0;
  std::int64_t size = 0;
  std::int64_t rank = 0;
  Address start = 0;
  Address last = 0;
  Address counts = 0;
};

struct SliceMove {
  static constexpr const char* kernel = "slice_move";
  Address indices = 0;
  std::int64_t size = 0;
  std::int64_t rank = 0;
  Address start = 0;
  Address last = 0;
  Address counts = 0;
  Address values = 0;
  Address to_indices = 0;
  Address to_values = 0;
};

struct SliceBox {
  static constexpr const char* kernel = "slice_box";
  Address start = 0;
  Address output = 0;
  std::int64_t size = 0;
  std::int64_t rank = 0;
  Address box = 0;
};

struct BoxCount {
  static constexpr const char* kernel = "box_count";
  Address input = 0;
  std::int64_t size = 0;
  std::int64_t rank = 0;
  Address box = 0;
  Address counts = 0;
};

struct BoxMatch {
  static constexpr const char* kernel = "box_match";
  Address input = 0;
  std::int64_t size = 0;
  std::int64_t rank = 0;
  Address start = 0;
  Address output = 0;
  std::int64_t output_size = 0;
  Address box = 0;
  Address counts = 0;
  Address taken = 0;
  Address differ = 0;
};

struct SliceWalk {
  static constexpr const char* kernel = "slice_walk";
  Address input = 0;
  std::int64_t size = 0;
  std::int64_t rank = 0;
  Address start = 0;
  Address output = 0;
  std::int64_t output_size = 0;
  Address taken = 0;
  Address differ = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct SliceSpread {
  static constexpr const char* kernel = "slice_spread";
  Address taken = 0;
  std::int64_t size = 0;
  Address grad = 0;
  Address to = 0;
  Address checks = 0;
};

struct SlicePick {
  static constexpr const char* kernel = "slice_pick";
  Address taken = 0;
  std::int64_t size = 0;
  Address grad = 0;
  Address to = 0;
  Address checks = 0;
};

struct NumbersEntry {
  Address lr = 0;
  std::int64_t lr_wide = 0;
  double known_lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  Address count = 0;
  Address number = 0;
  std::int64_t known_step = 0;
};

struct ReadNumbers {
  static constexpr const char* kernel = "read_numbers";
  Address entries = 0;
  std::int64_t size = 0;
  std::int64_t has_rate = 0;
  std::int64_t is_positive = 0;
  double most = 0;
  std::int64_t rule = 0;
  Address out = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
  std::int64_t only[8] = {};
};

struct BagsEntry {
  Address ids = 0;
  std::int64_t ids_wide = 0;
  Address segments = 0;
  std::int64_t segments_wide = 0;
  std::int64_t size = 0;
  std::int64_t rows = 0;
  std::int64_t bags = 0;
  std::int64_t number = 0;
  std::int64_t row_first = 0;
  std::int64_t segment_first = 0;
  std::int64_t entry_first = 0;
};

struct StackTableBags {
  static constexpr const char* kernel = "stack_table_bags";
  Address tables = 0;
  std::int64_t count_tables = 0;
  std::int64_t id_code = 0;
  std::int64_t segment_code = 0;
  Address rows = 0;
  Address segments = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct PlaceEntry {
  std::int64_t row_first = 0;
  std::int64_t place_first = 0;
};

struct ListEntry {
  Address table = 0;
  Address slot0 = 0;
  Address slot1 = 0;
  std::int64_t seed = 0;
  std::int64_t rows = 0;
  Address grad = 0;
  Address ids = 0;
  std::int64_t wide = 0;
  Address count = 0;
  Address found = 0;
  std::int64_t size = 0;
  std::int64_t first = 0;
};

struct FindTables {
  static constexpr const char* kernel = "find_tables";
  Address tables = 0;
  std::int64_t count_tables = 0;
  Address rows = 0;
  Address total = 0;
  Address shifts = 0;
  Address counts = 0;
  Address checks = 0;
};

struct SumTableRows {
  static constexpr const char* kernel = "sum_table_rows";
  Address tables = 0;
  std::int64_t count_tables = 0;
  Address shifts = 0;
  Address grads = 0;
  std::int64_t grad_stride = 0;
  std::int64_t segment_shift = 0;
  std::int64_t ignored_row = 0;
  Address out = 0;
  std::int64_t cols = 0;
  std::int64_t lanes = 0;
  Address ids = 0;
  Address segments = 0;
  Address scales = 0;
  Address divisors = 0;
  Address heads = 0;
  Address firsts = 0;
  Address begins = 0;
  std::int64_t size = 0;
  std::int64_t run_shift = 0;
  std::int64_t unique = 0;
  Address partials = 0;
  Address lefts = 0;
  Address left_count = 0;
  Address checks = 0;
};

struct SumStackRows {
  static constexpr const char* kernel = "sum_stack_rows";
  Address grads = 0;
  std::int64_t grad_stride = 0;
  std::int64_t segment_shift = 0;
  std::int64_t ignored_row = 0;
  Address out = 0;
  std::int64_t cols = 0;
  std::int64_t lanes = 0;
  Address ids = 0;
  Address segments = 0;
  Address scales = 0;
  Address divisors = 0;
  Address heads = 0;
  Address firsts = 0;
  Address begins = 0;
  std::int64_t size = 0;
  std::int64_t run_shift = 0;
  std::int64_t unique = 0;
  Address partials = 0;
  Address lefts = 0;
  Address left_count = 0;
  Address checks = 0;
};

struct PadTableGradients {
  static constexpr const char* kernel = "pad_table_gradients";
  Address tables = 0;
  Address rows = 0;
  Address shifts = 0;
  Address counts = 0;
  Address values = 0;
  std::int64_t units = 0;
  Address ids = 0;
};

struct CheckTableLists {
  static constexpr const char* kernel = "check_table_lists";
  Address tables = 0;
  std::int64_t count_tables = 0;
  std::int64_t code = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct StepTableLists {
  static constexpr const char* kernel = "step_table_lists";
  Address tables = 0;
  std::int64_t count_tables = 0;
  Address table = 0;
  Address slot0 = 0;
  Address slot1 = 0;
  std::int64_t cols = 0;
  double lr = 0;
  double eps = 0;
  double weight_decay = 0;
  double beta1 = 0;
  double beta2 = 0;
  double rate = 0;
  double momentum = 0;
  double nesterov = 0;
  double lr_power = 0;
  double l1 = 0;
  double l2 = 0;
  double l2_shrinkage = 0;
  std::int64_t random = 0;
  std::int64_t seed = 0;
  std::int64_t step = 0;
  Address live = 0;
  std::int64_t lanes = 0;
  std::int64_t size = 0;
  Address checks = 0;
};

struct TableEntry {
  std::int64_t row_first = 0;
  Address table = 0;
  Address slot0 = 0;
  Address slot1 = 0;
  std::int64_t seed = 0;
};

struct SumFeatureRows {
  static constexpr const char* kernel = "sum_feature_rows";
  Address grads = 0;
  std::int64_t grad_stride = 0;
  std::int64_t segment_shift = 0;
  std::int64_t ignored_row = 0;
  Address out = 0;
  std::int64_t cols = 0;
  std::int64_t lanes = 0;
  Address ids = 0;
  Address segments = 0;
  Address scales = 0;
  Address divisors = 0;
  Address heads = 0;
  Address firsts = 0;
  Address begins = 0;
  std::int64_t size = 0;
  std::int64_t run_shift = 0;
  std::int64_t unique = 0;
  Address partials = 0;
  Address lefts = 0;
  Address left_count = 0;
  Address checks = 0;
};

struct StepTableRows {
  static constexpr const char* kernel = "step_table_rows";
  Address tables = 0;
  std::int64_t count_tables = 0;
  Address grads = 0;
  std::int64_t grad_stride = 0;
  std::int64_t segment_shift = 0;
  Address table = 0;
  Address slot0 = 0;
  Address slot1 = 0;
  std::int64_t cols = 0;
  double lr = 0;
  double eps = 0;
  double weight_decay = 0;
  double beta1 = 0;
  double beta2 = 0;
  double rate = 0;
  double momentum = 0;
  double nesterov = 0;
  double lr_power = 0;
  double l1 = 0;
  double l2 = 0;
  double l2_shrinkage = 0;
  std::int64_t random = 0;
  std::int64_t seed = 0;
  std::int64_t step = 0;
  Address live = 0;
  std::int64_t lanes = 0;
  Address grad = 0;
  Address ids = 0;
  std::int64_t wide = 0;
  std::int64_t size = 0;
  Address count = 0;
  Address starts = 0;
  std::int64_t entries = 0;
  Address segments = 0;
  Address scales = 0;
  Address checks = 0;
};

struct CheckRowIds {
  static constexpr const char* kernel = "check_row_ids";
  Address ids = 0;
  std::int64_t wide = 0;
  std::int64_t size = 0;
  Address count = 0;
  std::int64_t bound = 0;
  std::int64_t code = 0;
  Address found = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct UpdateRows {
  static constexpr const char* kernel = "update_rows";
  Address table = 0;
  Address slot0 = 0;
  Address slot1 = 0;
  std::int64_t cols = 0;
  double lr = 0;
  double eps = 0;
  double weight_decay = 0;
  double beta1 = 0;
  double beta2 = 0;
  double rate = 0;
  double momentum = 0;
  double nesterov = 0;
  double lr_power = 0;
  double l1 = 0;
  double l2 = 0;
  double l2_shrinkage = 0;
  std::int64_t random = 0;
  std::int64_t seed = 0;
  std::int64_t step = 0;
  Address live = 0;
  std::int64_t lanes = 0;
  Address grad = 0;
  Address ids = 0;
  std::int64_t wide = 0;
  std::int64_t size = 0;
  Address count = 0;
  Address checks = 0;
};

struct MarkRows {
  static constexpr const char* kernel = "mark_rows";
  Address marks = 0;
  Address ids = 0;
  std::int64_t wide = 0;
  std::int64_t size = 0;
  Address count = 0;
  Address checks = 0;
};

struct FadeRows {
  static constexpr const char* kernel = "fade_rows";
  Address table = 0;
  Address slot0 = 0;
  Address slot1 = 0;
  std::int64_t cols = 0;
  double lr = 0;
  double eps = 0;
  double weight_decay = 0;
  double beta1 = 0;
  double beta2 = 0;
  double rate = 0;
  double momentum = 0;
  double nesterov = 0;
  double lr_power = 0;
  double l1 = 0;
  double l2 = 0;
  double l2_shrinkage = 0;
  std::int64_t random = 0;
  std::int64_t seed = 0;
  std::int64_t step = 0;
  Address live = 0;
  std::int64_t lanes = 0;
  Address marks = 0;
  std::int64_t rows = 0;
  Address checks = 0;
};

struct WeightedBags {
  static constexpr const char* kernel = "weighted_bags";
  Address data = 0;
  Address out = 0;
  std::int64_t columns = 0;
  std::int64_t lanes = 0;
  Address ids = 0;
  std::int64_t ids_wide = 0;
  Address segments = 0;
  std::int64_t segments_wide = 0;
  Address weights = 0;
  std::int64_t size = 0;
  std::int64_t rows = 0;
  std::int64_t bags = 0;
  std::int64_t block_bags = 0;
  std::int64_t capacity = 0;
  std::int64_t has_divisor = 0;
  std::int64_t is_squared = 0;
  Address rest = 0;
  Address checks = 0;
};

struct RestOfWeightedBags {
  static constexpr const char* kernel = "rest_of_weighted_bags";
  Address data = 0;
  Address out = 0;
  std::int64_t columns = 0;
  std::int64_t log_lanes = 0;
  Address ids = 0;
  std::int64_t ids_wide = 0;
  Address segments = 0;
  std::int64_t segments_wide = 0;
  Address weights = 0;
  std::int64_t size = 0;
  std::int64_t rows = 0;
  std::int64_t bags = 0;
  std::int64_t has_divisor = 0;
  std::int64_t is_squared = 0;
  std::int64_t poison = 0;
  std::int64_t poisons = 0;
  std::int64_t passes = 0;
  std::int64_t bits = 0;
  Address histograms = 0;
  Address states = 0;
  std::int64_t zeroed = 0;
  Address pairs = 0;
  Address other_pairs = 0;
  Address sorted = 0;
  Address positions = 0;
  Address rest = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct WeighEntries {
  static constexpr const char* kernel = "weigh_entries";
  Address values = 0;
  Address segments = 0;
  std::int64_t wide_segments = 0;
  Address weights = 0;
  Address totals = 0;
  std::int64_t size = 0;
  Address scales = 0;
  Address divisors = 0;
  Address checks = 0;
};

struct CheckWeighted {
  static constexpr const char* kernel = "check_weighted";
  Address indices = 0;
  std::int64_t wide_indices = 0;
  std::int64_t data_rows = 0;
  Address segments = 0;
  std::int64_t wide_segments = 0;
  std::int64_t segment_rows = 0;
  std::int64_t size = 0;
  Address falls = 0;
  Address bounds = 0;
  Address checks = 0;
  Address fault = 0;
  Address alarm = 0;
};

struct ConvertWeights {
  static constexpr const char* kernel = "convert_weights";
  Address weights = 0;
  std::int64_t size = 0;
  Address brought = 0;
  Address checks = 0;
};

struct TotalWeights {
  static constexpr const char* kernel = "total_weights";
  Address weights = 0;
  Address bounds = 0;
  Address sorted = 0;
  Address positions = 0;
  Address falls = 0;
  std::int64_t size = 0;
  std::int64_t rows = 0;
  std::int64_t is_squared = 0;
  Address totals = 0;
  Address checks = 0;
};

struct WeightedRows {
  static constexpr const char* kernel = "weighted_rows";
  Address grad = 0;
  std::int64_t cols = 0;
  Address segments = 0;
  std::int64_t wide = 0;
  Address weights = 0;
  Address totals = 0;
  std::int64_t size = 0;
  std::int64_t log_lanes = 0;
  Address out = 0;
  Address checks = 0;
};

}  // namespace rowgrad::cuda
