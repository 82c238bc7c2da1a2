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

// Host memory for the fault reports of a device: one slot per call, and one word that is set if any slot is. Of each
// call it has the caller, which errors name.
template <class Caller>
class LedgerOf {
 public:
  struct Reported {
    Address slot;
    Caller caller;
    std::int64_t code, position, value, bound;
  };

  // `memory`: (slots + 1) · 4 words that the device can write, zeroed; the first is the alarm. A word for each slot may
  // follow, see `count_of`. `checks`: slots + 1 words on the device, zeroed, for the check states of kernels that reset
  // them.
  LedgerOf(Address memory, int slots, Address checks) : slots_(slots), memory_(memory), checks_(checks), calls_(slots) {
    ++alive;
  }
  ~LedgerOf() { --alive; }
  LedgerOf(const LedgerOf&) = delete;
  LedgerOf& operator=(const LedgerOf&) = delete;

  static inline std::atomic<int> alive = 0;  // one for each device that was used

  Address alarm() const { return memory_; }
  bool is_raised() const { return *word(0) != 0; }
  int captured() const { return captured_; }

  // Returns the slot of a call. A captured call keeps it, because its graph may run at any time. 0 if there is none.
  Address take(Caller caller, bool captured) {
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

  // Returns the word of a slot for a number that the host waits for, which is -1 until a kernel writes it.
  Address count_of(Address slot) const {
    const Address count = memory_ + static_cast<Address>(slots_ + 1) * kSlotBytes + ((slot - memory_) / kSlotBytes - 1) * 8;
    *word(count) = -1;
    return count;
  }

  Report report_of_slot(Address slot) const { return {slot, alarm(), checks_of(slot)}; }

  // Returns the reported faults, oldest first; clears them.
  std::vector<Reported> reported() {
    std::vector<Reported> found;
    const std::lock_guard guard(lock_);
    if (!is_raised()) return found;
    *word(0) = 0;
    std::atomic_thread_fence(std::memory_order_seq_cst);  // a later alarm stays raised; reports are read after the alarm
    std::vector<int> slots;
    for (int slot = 0; slot < slots_; ++slot)
      if (*word(address_of(slot)) != 0) slots.push_back(slot);
    std::atomic_thread_fence(std::memory_order_acquire);  // what the codes belong to is read after them
    std::sort(slots.begin(), slots.end(), [&](int a, int b) { return calls_[a].order < calls_[b].order; });
    for (const int slot : slots) {
      volatile std::int64_t* const report = word(address_of(slot));
      found.push_back({address_of(slot), calls_[slot].caller, report[0], report[1], report[2], report[3]});
      report[0] = 0;
    }
    return found;
  }

 private:
  static constexpr Address kSlotBytes = 4 * 8;
  struct Call {
    Caller caller;
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

using Ledger = LedgerOf<nanobind::object>;  // whose calls need the GIL

}  // namespace rowgrad::cuda
