// One CUDA device: compiled kernels, launches and memsets on a stream.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "driver.h"

namespace rowgrad::cuda {

struct Grid {
  std::int64_t x = 1, y = 1;
};

// Arguments that exceed what the kernels can count, or what a grid can have.
struct TooLarge : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr std::int64_t ceil_div(std::int64_t items, std::int64_t per_block) {
  return (items + per_block - 1) / per_block;
}

// A loaded kernel.
struct Function {
  void* handle = nullptr;
  int threads = 0;  // per block
  int shared = 0;   // bytes that a block may use
};

// What the loader returns: machine code, the name of its entry and the block size.
struct Code {
  std::string cubin, entry;
  int threads;
};
using Loader = std::function<Code(std::string_view kernel, std::string_view variant)>;

class Device {
 public:
  // `loader` compiles kernels, at their first use.
  Device(const Driver& driver, int index, int processors, Loader loader);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const int processors;
  const std::int64_t shared_limit;  // the most bytes of shared memory of a block

  // Returns a kernel; `variant` is its template arguments, separated by ", ".
  Function& function(std::string_view kernel, std::string_view variant);

  // Queues a kernel; a grid without blocks is not launched. Throws TooLarge if CUDA does not support the grid.
  template <class Params>
  void launch(Stream stream, std::string_view variant, Grid grid, std::int64_t shared, const Params& params) {
    static_assert(sizeof(Params) % 8 == 0);
    launch(stream, function(Params::kernel, variant), grid, shared, &params, sizeof(Params));
  }
  void launch(Stream stream, Function& function, Grid grid, std::int64_t shared, const void* params, std::size_t size);

  template <class Params>
  int threads_of(std::string_view variant) {
    return function(Params::kernel, variant).threads;
  }

  // Queues zeros.
  void zero(Stream stream, Address memory, std::int64_t bytes);
  // Makes the side stream wait for the work queued so far, and returns it. What is queued there must be waited for, by
  // `join`, or `mark_side` names it and `wait_for_mark` makes the stream wait for that.
  Stream fork(Stream stream);
  void* mark_side(Stream stream);
  void wait_for_mark(Stream stream, void* mark);
  // Queues zeros on the side stream after the work queued so far; `join` makes the stream wait for it.
  void zero_on_side_stream(Stream stream, Address memory, std::int64_t bytes);
  void join(Stream stream);

  // Waits until a kernel on the stream has written a number that is not negative to a word of host memory, and returns
  // it. The word shows it while later work is still queued.
  std::int64_t wait_for_number(Stream stream, Address word);

  // Waits for all work queued on this device. The thread's current device stays what it is: callers loop over devices.
  void synchronize();

  bool is_capturing(Stream stream) const;
  // Whether this device is the calling thread's current one.
  bool is_current();

 private:
  // A side stream that was last used beside `stream` while a CUDA graph captured it.
  struct CapturedSide {
    Stream stream, side;
  };

  void enter();
  Stream side_of(Stream stream);
  Stream new_stream() const;
  void* new_event() const;

  const Driver driver_;
  const int index_;
  const Loader loader_;
  std::mutex lock_;
  void* context_ = nullptr;
  std::unordered_map<std::string, Function> functions_;  // references to elements stay valid
  // Guarded by `order_lock_`, like each pair of a record and a wait, so that threads can share events.
  std::mutex order_lock_;
  Stream side_ = nullptr;  // of all streams that are not captured
  std::vector<CapturedSide> captured_sides_;
  void* event_ = nullptr;
  std::vector<void*> marks_;  // events that are not in use
};

// Work on the side stream, beside what is queued while this object lives. The end makes the stream wait for it, also after
// an exception: memory that it uses must not be released before. Without `is_used`, the side is the stream itself.
class SideWork {
 public:
  SideWork(Device& device, Stream stream, bool is_used = true)
      : device_(device), stream_(stream), side_(is_used ? device.fork(stream) : stream), is_pending_(is_used) {}
  SideWork(const SideWork&) = delete;
  SideWork& operator=(const SideWork&) = delete;
  ~SideWork() noexcept(false);

  Stream side() const { return side_; }
  // All of it is queued: `wait` waits for no later work.
  void mark() {
    if (is_pending_) mark_ = device_.mark_side(stream_);
  }
  void wait();

 private:
  Device& device_;
  const Stream stream_, side_;
  void* mark_ = nullptr;
  bool is_pending_;
};

}  // namespace rowgrad::cuda
