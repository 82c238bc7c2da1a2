// The fault reports of a CUDA device (src/rowgrad/cuda/faults.py).
#pragma once
#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "../cuda/layout.h"

namespace rowgrad::cuda {

namespace nb = nanobind;

// Host memory for the fault reports of a device: one slot per call, and one word that is set if any slot is.
class Ledger {
 public:
  // `memory`: (slots + 1) · 4 words that the device can write, zeroed; the first is the alarm. `checks`: slots + 1 words
  // on the device, zeroed, for the check states of kernels that reset them.
  Ledger(Address memory, int slots, Address checks) : slots_(slots), memory_(memory), checks_(checks), calls_(slots) {
    ++alive;
  }
  ~Ledger() { --alive; }
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  static inline std::atomic<int> alive = 0;  // one for each device that was used

  Address alarm() const { return memory_; }
  bool is_raised() const { return *word(0) != 0; }
  int captured() const { return captured_; }

  // Returns the slot of a call. A captured call keeps it, because its graph may run at any time. 0 if there is none.
  Address take(nb::object caller, bool captured) {
    std::unique_lock guard(lock_);
    if (captured && captured_ >= slots_ / 2) return 0;
    while (calls_[taken_ % slots_].captured) ++taken_;
    Call& call = calls_[taken_ % slots_];
    const Address address = address_of(static_cast<int>(taken_ % slots_));
    call.order = taken_++;
    call.captured = captured;
    captured_ += captured;
    std::swap(call.caller, caller);
    *word(address) = 0;
    guard.unlock();  // before the earlier caller is released
    return address;
  }

  // Returns the check state of a slot.
  Address checks_of(Address slot) const { return checks_ + (slot - memory_) / kSlotBytes * 8; }

  Report report_of_slot(Address slot) const { return {slot, alarm(), checks_of(slot)}; }

  // Returns the reported faults, oldest first, as (slot, caller, code, position, value, bound); clears them.
  nb::list reported() {
    nb::list found;
    const std::lock_guard guard(lock_);
    if (!is_raised()) return found;
    *word(0) = 0;
    std::vector<int> slots;
    for (int slot = 0; slot < slots_; ++slot)
      if (*word(address_of(slot)) != 0) slots.push_back(slot);
    std::sort(slots.begin(), slots.end(), [&](int a, int b) { return calls_[a].order < calls_[b].order; });
    for (const int slot : slots) {
      volatile std::int64_t* const report = word(address_of(slot));
      found.append(nb::make_tuple(address_of(slot), calls_[slot].caller, std::int64_t(report[0]), std::int64_t(report[1]),
                                  std::int64_t(report[2]), std::int64_t(report[3])));
      report[0] = 0;
    }
    return found;
  }

 private:
  static constexpr Address kSlotBytes = 4 * 8;
  struct Call {
    nb::object caller;
    std::int64_t order = 0;
    bool captured = false;
  };

  Address address_of(int slot) const { return memory_ + static_cast<Address>(slot + 1) * kSlotBytes; }
  // A word of the memory, which kernels write at any time.
  volatile std::int64_t* word(Address address) const {
    return reinterpret_cast<volatile std::int64_t*>(address ? address : memory_);
  }

  const int slots_;
  const Address memory_, checks_;
  std::mutex lock_;
  std::vector<Call> calls_;
  std::int64_t taken_ = 0;
  int captured_ = 0;
};

}  // namespace rowgrad::cuda
