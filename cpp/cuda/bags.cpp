#include "bags.h"

#include "poison.h"

namespace rowgrad::cuda {
namespace {

// The launch of a kernel in which each block sums consecutive bags and lists their ids in shared memory.
struct BlocksOfBags {
  std::string variant;
  Grid grid;
  std::int64_t shared, block_bags, capacity;
  ColumnShape shape;

  template <class Params>
  static BlocksOfBags of(Device& device, const Matrix& data, Address out, std::int64_t size, std::int64_t bags) {
    constexpr std::int64_t kWave = 7;         // blocks per multiprocessor
    constexpr std::int64_t kListed = 4096;    // ids of a block in shared memory
    constexpr std::int64_t kMaxRounds = 16;
    const int bytes = itemsize(data.dtype);
    const ColumnShape shape(data.dtype, data.columns, {{data.data, bytes}, {out, bytes}});
    std::string variant = std::string(type_name(data.dtype)) + ", " + std::to_string(shape.width);
    const int threads = device.threads_of<Params>(variant);
    const std::int64_t workers = threads / shape.lanes;
    // Enough bags per block for one wave of blocks, but few enough that their ids mostly fit in shared memory.
    const std::int64_t rounds = std::min(ceil_div(bags, workers * kWave * device.processors),
                                         3 * kListed * bags / (4 * workers * (size + 1)));
    const std::int64_t block_bags = workers * std::clamp<std::int64_t>(rounds, 1, kMaxRounds);
    // Half as many ids again as an average block has.
    const std::int64_t capacity = std::min(kListed, 3 * block_bags * (size / (bags + 1) + 8) / 2);
    const std::int64_t shared = std::int64_t(threads) * shape.width * itemsize(accumulator_of(data.dtype)) +
                                8 * (block_bags + 2) + 4 * (capacity + block_bags);
    const Grid grid{std::max<std::int64_t>(ceil_div(bags, block_bags), 1), std::max<std::int64_t>(shape.tiles, 1)};
    return {std::move(variant), grid, shared, block_bags, capacity, shape};
  }

  // Fills the fields that the kernels share, and queues the kernel.
  template <class Params>
  void launch(Device& device, Stream stream, const Matrix& data, Address out, const IdList& ids, std::int64_t size,
              std::int64_t bags, std::int64_t reduce, const Report& report, Params params) const {
    params.data = data.data;
    params.out = out;
    params.columns = shape.columns;
    params.lanes = shape.lanes;
    params.ids = ids.data;
    params.ids_wide = ids.wide;
    params.size = size;
    params.rows = data.rows;
    params.bags = bags;
    params.block_bags = block_bags;
    params.capacity = capacity;
    params.reduce = reduce;
    params.checks = report.checks;
    params.fault = report.fault;
    params.alarm = report.alarm;
    device.launch(stream, variant, grid, shared, params);
  }
};

}  // namespace

void sum_bags(Device& device, Stream stream, const Matrix& data, const SegmentBags& bags, Address out,
              std::int64_t reduce, const Report& report, Address earlier, bool poisons) {
  SumBags params;
  params.poisons = poisons;
  params.poison = poison_of(data.dtype);
  params.segments = bags.segments.data;
  params.segments_wide = bags.segments.wide;
  params.earlier = earlier;
  BlocksOfBags::of<SumBags>(device, data, out, bags.size, bags.bags)
      .launch(device, stream, data, out, bags.ids, bags.size, bags.bags, reduce, report, params);
}

void sum_bags(Device& device, Stream stream, const Matrix& data, const OffsetBags& bags, Address out,
              std::int64_t reduce, const Report& report, Address segments) {
  SumOffsetBags params;
  params.offsets = bags.offsets.data;
  params.offsets_wide = bags.offsets.wide;
  params.has_end = bags.has_end;
  params.segments = segments;
  BlocksOfBags::of<SumOffsetBags>(device, data, out, bags.size, bags.bags)
      .launch(device, stream, data, out, bags.ids, bags.size, bags.bags, reduce, report, params);
}

}  // namespace rowgrad::cuda
