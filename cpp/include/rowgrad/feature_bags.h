// Bags of many features, each in a table of its own: the forward pass, row-sparse and dense gradients, fused updates.
//
// A FeatureBatch reads the caller's ids and offsets once. It validates them and stores a private, compact copy, which
// the forward pass, the sort by row and the updates share; so another thread cannot change ids that become addresses,
// and no array of segment ids is ever written. Every table is sorted on its own: its entries fit a core's cache, and it
// needs fewer passes than one sort of all tables.
//
// The order of addition, and so every bit, is that of the ops: bags as in SparseSegment* and WeightedSparseSegment*,
// gradients as in their Grad ops. Features that share a table contribute example by example, in the order of features.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "rowgrad/dispatch.h"
#include "rowgrad/reused_output.h"
#include "rowgrad/sorted_batch.h"
#include "rowgrad/table_updates.h"

namespace rowgrad {

struct FeatureTable {
  std::int64_t rows, cols;
  std::int64_t padding;  // ids of this row are dropped; -1: none
  Reduction kind;
};

// What all batches of a module have in common.
struct FeatureLayout {
  DType dtype;
  std::vector<FeatureTable> tables;
  std::vector<std::int64_t> table_of;               // per feature
  std::vector<std::vector<std::int64_t>> readers;   // per table: its features, ascending

  FeatureLayout(DType type, std::vector<FeatureTable> all, std::vector<std::int64_t> features)
      : dtype(type), tables(std::move(all)), table_of(std::move(features)), readers(tables.size()) {
    for (std::size_t f = 0; f < table_of.size(); ++f)
      readers.at(static_cast<std::size_t>(table_of[f])).push_back(std::int64_t(f));
  }
  std::int64_t features() const { return std::int64_t(table_of.size()); }
  const FeatureTable& table(std::int64_t feature) const { return tables[static_cast<std::size_t>(table_of[feature])]; }
};

// The caller's arrays of one feature.
struct FeatureInput {
  IdList ids;
  IdList offsets;  // without data: every bag has `size` ids
  const void* weights;  // may be null
  DType weights_dtype;
};

// Rows of a matrix whose columns are contiguous.
template <class T>
struct StridedRows {
  T* data;
  std::int64_t stride;
};

class FeatureBatch {
  using P = std::uint32_t;
  static constexpr std::int64_t kMost = std::int64_t{1} << 31;  // ids, bags and rows that 32-bit entries can hold

 public:
  FeatureBatch(const FeatureLayout& layout, std::int64_t bags) : layout_(&layout), bags_(bags) {}

  std::int64_t bags() const { return bags_; }

  // Whether 32-bit entries suffice; otherwise the caller must use the ops.
  static bool fits(const FeatureLayout& layout, std::int64_t bags, std::span<const FeatureInput> inputs) {
    std::int64_t ids = 0;
    for (const FeatureInput& in : inputs) {
      if (in.ids.size > kMost) return false;
      ids += in.ids.size;
    }
    for (const FeatureTable& table : layout.tables)
      if (table.rows > kMost) return false;
    return ids <= kMost && bags <= kMost / std::max<std::int64_t>(layout.features(), 1);
  }

  // Validates and copies the ids of all features; returns whether all are valid. `joined`: the features share one list
  // of ids, in order, and each feature's offsets end where those of the next begin. Offsets of one number more than bags
  // end with the end of the last bag.
  bool read(std::span<const FeatureInput> inputs, bool joined) {
    const std::int64_t features = layout_->features();
    std::vector<std::int64_t> begins(static_cast<std::size_t>(features));
    first_.assign(static_cast<std::size_t>(features) + 1, 0);
    for (std::int64_t f = 0; f < features; ++f) {
      const FeatureInput& in = inputs[static_cast<std::size_t>(f)];
      std::int64_t begin = 0, end = in.ids.size;
      if (in.offsets.data) {
        const bool has_end = in.offsets.size == bags_ + 1;
        if (!has_end && in.offsets.size != bags_) return false;
        if (in.offsets.size > 0) begin = at(in.offsets, 0);
        if (has_end) end = at(in.offsets, bags_);
      } else if (in.ids.size != bags_ * in.offsets.size) {
        return false;
      }
      if (begin < 0 || end < begin || end > in.ids.size) return false;
      const bool is_first = !joined || f == 0, is_last = !joined || f + 1 == features;
      if ((is_first && begin != 0) || (is_last && end != in.ids.size)) return false;
      if (bags_ == 0 && end > begin) return false;
      begins[static_cast<std::size_t>(f)] = begin;
      first_[static_cast<std::size_t>(f) + 1] = first_[static_cast<std::size_t>(f)] + end - begin;
    }
    if (first_.back() > kMost) return false;  // another thread changed shared offsets meanwhile
    rows_ = Scratch<P>(first_.back());
    starts_ = Scratch<P>(features * (bags_ + 1));
    weighted_ = std::any_of(inputs.begin(), inputs.end(), [](const FeatureInput& in) { return in.weights; });
    if (weighted_) {
      if (!std::all_of(inputs.begin(), inputs.end(), [](const FeatureInput& in) { return in.weights; })) return false;
      if (layout_->dtype == DType::float64)
        weights64_ = Scratch<double>(first_.back()), totals64_ = Scratch<double>(features * bags_);
      else
        weights32_ = Scratch<float>(first_.back()), totals32_ = Scratch<float>(features * bags_);
    }
    std::atomic<bool> bad{false};
    each_task(features, first_.back() + features * bags_, [&](std::int64_t f) {
      if (!copy_feature(inputs[static_cast<std::size_t>(f)], f, begins[static_cast<std::size_t>(f)]))
        bad.store(true, std::memory_order_relaxed);
    });
    return !bad.load();
  }

  // The number of ids of a feature, without padding.
  std::int64_t ids_of(std::int64_t f) const { return std::int64_t(starts(f)[bags_]) - std::int64_t(starts(f)[0]); }

  // Writes the ids of a feature, without padding, and where its bags begin and end among them.
  void copy_ids(std::int64_t f, std::int64_t* ids, std::int64_t* offsets) const {
    const P* start = starts(f);
    for (std::int64_t b = 0; b <= bags_; ++b) offsets[b] = std::int64_t(start[b]) - std::int64_t(start[0]);
    std::copy_n(rows_.data() + start[0], ids_of(f), ids);
  }

  // out[f] + bag · stride = the combined rows of each bag of feature f.
  template <class T>
  void forward(std::span<const T* const> tables, std::span<const StridedRows<T>> out) const {
    std::vector<OwnedRange> tasks;
    std::int64_t work = 0;
    for (std::int64_t f = 0; f < layout_->features(); ++f)
      work += (ids_of(f) + bags_) * std::max<std::int64_t>(layout_->table(f).cols, 1);
    for (std::int64_t f = 0; f < layout_->features(); ++f) {
      const std::int64_t own = (ids_of(f) + bags_) * std::max<std::int64_t>(layout_->table(f).cols, 1);
      add_ranges(tasks, f, bags_, own, work);
    }
    each_task(std::int64_t(tasks.size()), work, [&](std::int64_t t) {
      const OwnedRange task = tasks[static_cast<std::size_t>(t)];
      const auto f = static_cast<std::size_t>(task.owner);
      const FeatureTable& table = layout_->table(task.owner);
      const OffsetBags<T> bags{out[f].data, out[f].stride, tables[static_cast<std::size_t>(layout_->table_of[f])],
                               table.rows,  table.cols,    rows_.data(),
                               starts(task.owner), bags_,  table.kind,
                               weights<T>(), totals<T>(task.owner)};
      grad_ops<T>().reduce_offsets(bags, task.begin, task.end);
    });
  }

  // Sorts the ids of the given tables by row, unless that was done before.
  void sort(std::span<const std::int64_t> tables) {
    if (sorted_.empty()) sorted_.resize(layout_->tables.size());
    std::vector<std::int64_t> small;
    std::int64_t work = 0;
    fill_segments();
    for (const std::int64_t t : tables) {
      auto& table = sorted_[static_cast<std::size_t>(t)];
      if (table.done) continue;
      const std::int64_t n = ids_of_table(t);
      if (n > detail::kSortGrain * 4 && num_threads() > 1) {
        sort_with_all_threads(t);
        continue;
      }
      table.entries = Entries<P>(n);
      table.other = Entries<P>(n);
      small.push_back(t);
      work += n * 16;
    }
    each_task(std::int64_t(small.size()), work, [&](std::int64_t i) { sort_table(small[static_cast<std::size_t>(i)]); });
    for (const std::int64_t t : small) {
      auto& table = sorted_[static_cast<std::size_t>(t)];
      table.other = Entries<P>();
      table.done = true;
    }
  }

  // The number of distinct rows of a sorted table.
  std::int64_t distinct(std::int64_t table) {
    auto& sorted = sorted_[static_cast<std::size_t>(table)];
    if (sorted.distinct < 0) {
      const std::int64_t n = sorted.entries.size();
      std::int64_t runs = n > 0;
      for (std::int64_t i = 1; i < n; ++i) runs += sorted.entries[i].row != sorted.entries[i - 1].row;
      sorted.distinct = runs;
    }
    return sorted.distinct;
  }

  // Whether the dense gradient of a table is written to memory that holds anything, otherwise to zeros.
  bool writes_whole(std::int64_t table) const {
    const FeatureTable& facts = layout_->tables[static_cast<std::size_t>(table)];
    return is_written_whole(facts.rows, facts.cols * width_of(layout_->dtype));
  }

  // The gradient of one sorted table: its distinct rows to `out` and `ids`; or, without ids, all rows to the table
  // `out`, which holds zeros unless `writes_whole`. `gradients`: of all features.
  template <class T>
  void gradient(std::int64_t table, std::span<const StridedRows<const T>> gradients, Order order, Rounding rounding,
                T* out, std::int64_t* ids) const {
    const Entries<P>& entries = sorted_[static_cast<std::size_t>(table)].entries;
    const FeatureTable& facts = layout_->tables[static_cast<std::size_t>(table)];
    const std::int64_t n = entries.size(), cols = facts.cols;
    const std::int64_t to_clear = !ids && writes_whole(table) ? facts.rows : 0;
    if (n == 0) {
      std::fill_n(out, to_clear * cols, T{});
      return;
    }
    const Source<T> source(*this, table, gradients);
    const std::int64_t parts = work_parts(n, cols);
    const std::vector<std::int64_t> before = ids ? runs_before(entries, parts) : std::vector<std::int64_t>();
    const SortedRows<T, P> batch{out, source.rows.data, cols, entries.data(), n, source.scale(), ids != nullptr, order,
                                 to_clear, source.rows.stride};
    parallel_parts(n, parts, [&](std::int64_t begin, std::int64_t end, std::int64_t part) {
      const std::int64_t first = ids ? before[static_cast<std::size_t>(part)] : 0;
      if (weighted_)
        grad_ops<T>().weighted_runs(batch, source.weighted(rounding), begin, end, first);
      else
        grad_ops<T>().accumulate_runs(batch, begin, end, first);
      if (!ids) return;
      std::int64_t k = first;
      for (std::int64_t i = begin; i < end; ++i)
        if (i == 0 || entries[i].row != entries[i - 1].row) ids[k++] = std::int64_t(entries[i].row);
    });
  }

  // Sums the gradient of the listed tables by row and updates the rows in place; `steps` has one step for each. All
  // memory is allocated before the first row changes.
  template <class T>
  void update(std::span<const std::int64_t> tables, std::span<const TableUpdate> steps,
              std::span<const StridedRows<const T>> gradients, Order order, Rounding rounding) {
    sort(tables);
    auto entries_of = [&](std::size_t i) -> const Entries<P>& { return sorted_[static_cast<std::size_t>(tables[i])].entries; };
    std::vector<RowUpdate<T>> updates;
    std::vector<Source<T>> sources;
    std::vector<RowList> distinct_lists;
    updates.reserve(steps.size());
    sources.reserve(steps.size());
    std::int64_t work = 0, most_cols = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      updates.push_back(steps[i].template rows_of<T>());
      sources.emplace_back(*this, tables[i], gradients);
      distinct_lists.push_back(steps[i].skips_rest() ? RowList{} : distinct_rows(entries_of(i), steps[i].rows));
      work += entries_of(i).size() * std::max<std::int64_t>(steps[i].cols, 1);
      most_cols = std::max(most_cols, steps[i].cols);
    }
    std::vector<OwnedRange> tasks;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const std::int64_t n = entries_of(i).size();
      add_ranges(tasks, std::int64_t(i), n, n * std::max<std::int64_t>(steps[i].cols, 1), work);
    }
    RowChunks<T> chunks(std::max<std::int64_t>(std::int64_t(tasks.size()), 1), most_cols);
    each_task(std::int64_t(tasks.size()), work, [&](std::int64_t t) {
      const OwnedRange task = tasks[static_cast<std::size_t>(t)];
      const auto i = static_cast<std::size_t>(task.owner);
      const Entries<P>& entries = entries_of(i);
      const RowUpdate<T>& u = updates[i];
      const SortedRows<T, P> batch{chunks.of(t), sources[i].rows.data, u.cols, entries.data(), entries.size(),
                                   sources[i].scale(), true, order, 0, sources[i].rows.stride};
      update_runs(u, entries, task.begin, task.end, chunks.of(t), chunks.rows(),
                  [&](const std::int64_t* starts, std::int64_t runs) {
                    if (weighted_)
                      grad_ops<T>().weighted_listed(batch, sources[i].weighted(rounding), starts, runs);
                    else
                      grad_ops<T>().accumulate_listed(batch, starts, runs);
                  });
    });
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].skips_rest()) continue;
      std::visit(
          [&]<class I>(const std::vector<I>& rows) {
            fade_other_rows(updates[i], Ids(rows.data(), std::int64_t(rows.size()), sizeof(I) == 8));
          },
          distinct_lists[i]);
    }
  }

 private:
  struct SortedTable {
    Entries<P> entries, other;  // by row; the buffer that sorting needs besides
    std::int64_t distinct = -1;
    bool done = false;
  };

  // The gradient rows of one table, and what each is multiplied by. An entry's `from` is a row of `rows`, or with
  // weights the position of an id.
  template <class T>
  struct Source {
    using A = Accumulator<T>;
    StridedRows<const T> rows;
    Scratch<T> gathered;
    Scratch<A> scales;
    const FeatureBatch* batch;
    Scratch<A> totals;

    Source(const FeatureBatch& b, std::int64_t table, std::span<const StridedRows<const T>> gradients) : batch(&b) {
      const auto& readers = b.layout_->readers[static_cast<std::size_t>(table)];
      const FeatureTable& facts = b.layout_->tables[static_cast<std::size_t>(table)];
      const auto k = std::int64_t(readers.size());
      if (k == 1) {
        rows = gradients[static_cast<std::size_t>(readers[0])];
      } else {  // the features' rows, example by example
        gathered = Scratch<T>(b.bags_ * k * facts.cols);
        for (std::int64_t bag = 0; bag < b.bags_; ++bag)
          for (std::int64_t j = 0; j < k; ++j) {
            const StridedRows<const T>& from = gradients[static_cast<std::size_t>(readers[static_cast<std::size_t>(j)])];
            std::copy_n(from.data + bag * from.stride, facts.cols, gathered.data() + (bag * k + j) * facts.cols);
          }
        rows = {gathered.data(), facts.cols};
      }
      if (!has_divisor(facts.kind)) return;
      Scratch<A>& list = b.weighted_ ? totals : scales;
      list = Scratch<A>(b.bags_ * k);
      for (std::int64_t j = 0; j < k; ++j) {
        const std::int64_t f = readers[static_cast<std::size_t>(j)];
        const P* start = b.starts(f);
        const A* total = b.weighted_ ? b.template totals<T>(f) : nullptr;
        for (std::int64_t bag = 0; bag < b.bags_; ++bag)
          list[bag * k + j] = total ? total[bag]
                                    : gradient_scale<A>(facts.kind, std::max<std::int64_t>(start[bag + 1] - start[bag], 1));
      }
    }

    const A* scale() const { return scales.empty() ? nullptr : scales.data(); }
    WeightedIds<T> weighted(Rounding rounding) const {
      return {{batch->segments_.data(), batch->rows_.size(), false},
              batch->template weights<T>(),
              totals.empty() ? nullptr : totals.data(),
              rounding};
    }
  };

  static std::int64_t at(const IdList& list, std::int64_t i) {
    return list.wide ? read_once(static_cast<const std::int64_t*>(list.data) + i)
                     : read_once(static_cast<const std::int32_t*>(list.data) + i);
  }

  // Positions in rows_: bag b of feature f has those from starts(f)[b] to starts(f)[b + 1].
  const P* starts(std::int64_t f) const { return starts_.data() + f * (bags_ + 1); }
  std::int64_t ids_of_table(std::int64_t table) const {
    std::int64_t n = 0;
    for (const std::int64_t f : layout_->readers[static_cast<std::size_t>(table)]) n += ids_of(f);
    return n;
  }

  template <class T>
  const Accumulator<T>* weights() const {
    if constexpr (std::is_same_v<Accumulator<T>, double>)
      return weighted_ ? weights64_.data() : nullptr;
    else
      return weighted_ ? weights32_.data() : nullptr;
  }
  template <class T>
  const Accumulator<T>* totals(std::int64_t f) const {
    if (!weighted_ || !has_divisor(layout_->table(f).kind)) return nullptr;
    if constexpr (std::is_same_v<Accumulator<T>, double>)
      return totals64_.data() + f * bags_;
    else
      return totals32_.data() + f * bags_;
  }

  bool copy_feature(const FeatureInput& in, std::int64_t f, std::int64_t begin) {
    bool good = true;
    const std::int64_t first = first_[static_cast<std::size_t>(f)];
    const std::int64_t n = first_[static_cast<std::size_t>(f) + 1] - first;
    const FeatureTable& table = layout_->table(f);
    P* start = starts_.data() + f * (bags_ + 1);
    start[bags_] = P(first + n);
    if (in.offsets.data) {
      typed(in.offsets, [&](auto* offset) {
        std::int64_t before = 0;
        bool falls = false;
        for (std::int64_t b = 0; b < bags_; ++b) {
          const std::int64_t here = std::int64_t(read_once(offset + b)) - begin;
          falls |= here < before;
          before = here;
          start[b] = P(first + here);
        }
        good = !falls && before <= n;  // then all starts are in [first, first + n]
      });
    } else {
      for (std::int64_t b = 0; b < bags_; ++b) start[b] = P(first + b * in.offsets.size);
    }
    if (!good) return false;
    if (!scan_ops().narrow(in.ids, begin, begin + n, table.rows, rows_.data() + first)) return false;
    if (in.weights)
      visit(Floats{}, in.weights_dtype, [&]<class W>(std::type_identity<W>) {
        const W* from = static_cast<const W*>(in.weights) + begin;
        if (weights64_.empty())
          copy_weights(from, n, weights32_.data() + first);
        else
          copy_weights(from, n, weights64_.data() + first);
      });
    if (table.padding >= 0) drop_padding(f, table.padding);
    if (in.weights && has_divisor(table.kind)) {
      if (weights64_.empty())
        add_weights(table.kind, start, weights32_.data(), totals32_.data() + f * bags_);
      else
        add_weights(table.kind, start, weights64_.data(), totals64_.data() + f * bags_);
    }
    return true;
  }

  template <class Fn>
  static void typed(const IdList& list, Fn&& fn) {
    if (list.wide)
      fn(static_cast<const std::int64_t*>(list.data));
    else
      fn(static_cast<const std::int32_t*>(list.data));
  }

  template <class W, class A>
  static void copy_weights(const W* from, std::int64_t n, A* to) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = A(load(from[i]));
  }

  // Moves the other ids, and their weights, to the front of the feature's range.
  void drop_padding(std::int64_t f, std::int64_t padding) {
    P* start = starts_.data() + f * (bags_ + 1);
    P* rows = rows_.data();
    std::int64_t to = start[0];
    for (std::int64_t b = 0, i = start[0]; b < bags_; ++b) {
      start[b] = P(to);
      for (const std::int64_t end = start[b + 1]; i < end; ++i) {
        if (rows[i] == P(padding)) continue;
        rows[to] = rows[i];
        if (!weights32_.empty()) weights32_[to] = weights32_[i];
        if (!weights64_.empty()) weights64_[to] = weights64_[i];
        ++to;
      }
    }
    start[bags_] = P(to);
  }

  // As in Weights: in input order, from zero.
  template <class A>
  void add_weights(Reduction kind, const P* start, const A* weights, A* totals) const {
    for (std::int64_t b = 0; b < bags_; ++b) {
      A sum = 0;
      switch (kind) {
        case Reduction::sum:
          break;
        case Reduction::mean:
          for (std::int64_t i = start[b]; i < start[b + 1]; ++i) sum += weights[i];
          break;
        case Reduction::sqrtn:
          for (std::int64_t i = start[b]; i < start[b + 1]; ++i) sum += weights[i] * weights[i];
          sum = std::sqrt(sum);
          break;
      }
      totals[b] = sum;
    }
  }

  // Lists the gradient row of every id. Most bags are short and their lengths random, so a loop over the ids of a bag
  // would mispredict its end: write a whole vector per bag, whose surplus the next bag overwrites.
  void fill_segments() {
    if (!segments_.empty() || rows_.empty()) return;
    constexpr std::int64_t lanes = 16;
    segments_ = Scratch<std::int32_t>(rows_.size() + lanes);
    // In the order of features, which is the order of positions.
    for (std::int64_t f = 0; f < layout_->features(); ++f) {
      const auto& readers = layout_->readers[static_cast<std::size_t>(layout_->table_of[static_cast<std::size_t>(f)])];
      const auto k = std::int64_t(readers.size());
      const std::int64_t j = std::find(readers.begin(), readers.end(), f) - readers.begin();
      const P* start = starts(f);
      std::int32_t* to = segments_.data();
      for (std::int64_t b = 0; b < bags_; ++b) {
        const auto segment = std::int32_t(b * k + j);
        std::int64_t i = start[b];
        do {
          std::fill_n(to + i, lanes, segment);
          i += lanes;
        } while (i < std::int64_t(start[b + 1]));
      }
    }
  }

  // Calls fn(row, from) for the ids of a table, example by example.
  template <class Fn>
  void each_id(std::int64_t table, Fn&& fn) const {
    if (weighted_)
      each_position(table, [&](P i) { fn(rows_[i], i); });
    else
      each_position(table, [&](P i) { fn(rows_[i], P(segments_[i])); });
  }

  template <class Fn>
  void each_position(std::int64_t table, Fn&& fn) const {
    const auto& readers = layout_->readers[static_cast<std::size_t>(table)];
    if (readers.size() == 1) {
      const P* start = starts(readers[0]);
      for (P i = start[0], end = start[bags_]; i < end; ++i) fn(i);
      return;
    }
    for (std::int64_t b = 0; b < bags_; ++b)
      for (const std::int64_t f : readers)
        for (P i = starts(f)[b], end = starts(f)[b + 1]; i < end; ++i) fn(i);
  }

  // A stable sort in memory that is already allocated: it must not throw.
  void sort_table(std::int64_t t) {
    SortedTable& table = sorted_[static_cast<std::size_t>(t)];
    Entry<P>*to = table.entries.data(), *other = table.other.data();
    const std::int64_t n = table.entries.size();
    const int bits = std::bit_width(std::uint64_t(std::max<std::int64_t>(layout_->tables[static_cast<std::size_t>(t)].rows, 1) - 1));
    if (n <= kInsertion) {
      std::int64_t size = 0;
      each_id(t, [&](P row, P from) {
        std::int64_t at = size++;
        for (; at > 0 && to[at - 1].row > row; --at) to[at] = to[at - 1];
        to[at] = {row, from};
      });
      return;
    }
    const int passes = count_passes(n, bits);
    std::array<int, kMostPasses + 1> shift{};
    for (int p = 0; p <= passes; ++p) shift[static_cast<std::size_t>(p)] = bits * p / passes;
    std::array<std::array<P, 1 << kDigit>, kMostPasses> count;
    for (int p = 0; p < passes; ++p) std::fill_n(count[static_cast<std::size_t>(p)].data(), digits(shift, p), 0);
    for (const std::int64_t f : layout_->readers[static_cast<std::size_t>(t)])
      for (int p = 0; p < passes; ++p) {
        P* counter = count[static_cast<std::size_t>(p)].data();
        const P mask = P(digits(shift, p) - 1);
        const int by = shift[static_cast<std::size_t>(p)];
        for (P i = starts(f)[0], end = starts(f)[bags_]; i < end; ++i) ++counter[(rows_[i] >> by) & mask];
      }
    for (int p = 0; p < passes; ++p) {
      P total = 0;
      for (std::int64_t d = 0; d < digits(shift, p); ++d)
        total += std::exchange(count[static_cast<std::size_t>(p)][static_cast<std::size_t>(d)], total);
    }
    // The last pass writes to `entries`.
    Entry<P>*target = passes % 2 ? to : other, *spare = passes % 2 ? other : to;
    each_id(t, [&](P row, P from) { target[count[0][digit(row, shift, 0)]++] = {row, from}; });
    for (int p = 1; p < passes; ++p) {
      std::swap(target, spare);
      auto& place = count[static_cast<std::size_t>(p)];
      for (std::int64_t i = 0; i < n; ++i) {
        const Entry<P> e = spare[i];
        target[place[digit(e.row, shift, p)]++] = e;
      }
    }
  }

  static constexpr int kDigit = 11, kMostPasses = 4;
  static constexpr std::int64_t kInsertion = 24;
  using Shifts = std::array<int, kMostPasses + 1>;
  static std::int64_t digits(const Shifts& shift, int p) {
    return std::int64_t{1} << (shift[static_cast<std::size_t>(p) + 1] - shift[static_cast<std::size_t>(p)]);
  }
  static std::size_t digit(P row, const Shifts& shift, int p) {
    return static_cast<std::size_t>((row >> shift[static_cast<std::size_t>(p)]) & P(digits(shift, p) - 1));
  }
  // Fewer passes move entries less often, but clear and add up more counters.
  static int count_passes(std::int64_t n, int bits) {
    int best = kMostPasses;
    std::int64_t least = -1;
    for (int p = 1; p <= kMostPasses; ++p) {
      const int width = (bits + p - 1) / p;
      if (width > kDigit) continue;
      const std::int64_t cost = p * (3 * n + (std::int64_t{1} << width));
      if (least < 0 || cost < least) least = cost, best = p;
    }
    return best;
  }

  void sort_with_all_threads(std::int64_t t) {
    SortedTable& table = sorted_[static_cast<std::size_t>(t)];
    const std::int64_t n = ids_of_table(t);
    Scratch<Entry<P>> input(n);
    std::int64_t size = 0;
    each_id(t, [&](P row, P from) { input[size++] = {row, from}; });
    const Entry<P>* e = input.data();
    table.entries = sorted_by_row<P>(
        n, layout_->tables[static_cast<std::size_t>(t)].rows, [e](std::int64_t i) { return e[i].row; },
        [e](std::int64_t i) { return e[i].from; });
    table.done = true;
  }

  const FeatureLayout* layout_;
  std::int64_t bags_;
  bool weighted_ = false;
  std::vector<std::int64_t> first_;  // where the ids of each feature begin in rows_, then their number
  Scratch<P> rows_, starts_;
  Scratch<float> weights32_, totals32_;
  Scratch<double> weights64_, totals64_;
  Scratch<std::int32_t> segments_;
  std::vector<SortedTable> sorted_;
};

}  // namespace rowgrad
