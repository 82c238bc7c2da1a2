#include "device.h"

#include <atomic>
#include <exception>

#include "rowgrad/parallel.h"

namespace rowgrad::cuda {
namespace {

constexpr int kMaxDynamicShared = 8;        // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kSharedOfBlock = 97;          // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
constexpr int kPlainShared = 48 * 1024;     // available to a block without opting in
constexpr unsigned kEventWithoutTiming = 2; // CU_EVENT_DISABLE_TIMING
constexpr unsigned kNonBlocking = 1;        // CU_STREAM_NON_BLOCKING
constexpr std::int64_t kMostX = 0x7fffffff, kMostY = 0xffff;  // blocks of a grid

std::int64_t shared_limit_of(const Driver& driver, int index) {
  int handle = 0, limit = 0;
  driver.check(driver.cuDeviceGet(&handle, index));
  driver.check(driver.cuDeviceGetAttribute(&limit, kSharedOfBlock, handle));
  return limit;
}

}  // namespace

Device::Device(const Driver& driver, int index, int processors, Loader loader)
    : processors(processors),
      shared_limit(shared_limit_of(driver, index)),
      driver_(driver),
      index_(index),
      loader_(std::move(loader)) {}

// Makes the device's primary context, which torch and XLA use, current in this thread.
void Device::enter() {
  if (!is_current()) driver_.check(driver_.cuCtxSetCurrent(context_));
}

bool Device::is_current() {
  void* current = nullptr;
  driver_.check(driver_.cuCtxGetCurrent(&current));
  const std::lock_guard guard(lock_);
  if (!context_) {
    int handle = 0;
    driver_.check(driver_.cuDeviceGet(&handle, index_));
    driver_.check(driver_.cuDevicePrimaryCtxRetain(&context_, handle));
  }
  return current == context_;
}

Function& Device::function(std::string_view kernel, std::string_view variant) {
  std::string key;
  key.reserve(kernel.size() + variant.size() + 1);
  key.append(kernel).append("<").append(variant);
  {
    const std::lock_guard guard(lock_);
    if (const auto found = functions_.find(key); found != functions_.end()) return found->second;
  }
  const Code code = loader_(kernel, variant);  // not locked: the loader may wait for Python's lock
  enter();
  Function loaded{nullptr, code.threads, kPlainShared};
  void* module = nullptr;
  driver_.check(driver_.cuModuleLoadData(&module, code.cubin.data()));
  driver_.check(driver_.cuModuleGetFunction(&loaded.handle, module, code.entry.c_str()));
  const std::lock_guard guard(lock_);
  return functions_.emplace(std::move(key), loaded).first->second;
}

void Device::launch(Stream stream, Function& function, Grid grid, std::int64_t shared, const void* params,
                    std::size_t size) {
  if (grid.x <= 0 || grid.y <= 0) return;
  if (grid.x > kMostX || grid.y > kMostY)
    throw TooLarge("a CUDA call supports at most " + std::to_string(kMostX) + " x " + std::to_string(kMostY) +
                   " blocks, this one needs " + std::to_string(grid.x) + " x " + std::to_string(grid.y));
  enter();
  if (shared > kPlainShared) {
    const std::lock_guard guard(lock_);  // a smaller limit must not overwrite a larger one
    if (shared > function.shared) {
      driver_.check(driver_.cuFuncSetAttribute(function.handle, kMaxDynamicShared, static_cast<int>(shared)));
      function.shared = static_cast<int>(shared);
    }
  }
  // Tags of the parts of `extra`: 1 the arguments, 2 their size, 0 the end.
  void* extra[] = {reinterpret_cast<void*>(1), const_cast<void*>(params), reinterpret_cast<void*>(2), &size, nullptr};
  driver_.check(driver_.cuLaunchKernel(function.handle, static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), 1,
                                       static_cast<unsigned>(function.threads), 1, 1, static_cast<unsigned>(shared),
                                       stream, nullptr, extra));
}

void Device::zero(Stream stream, Address memory, std::int64_t bytes) {
  if (bytes <= 0) return;
  enter();
  const auto size = static_cast<std::size_t>(bytes);
  if (bytes % 4 == 0 && memory % 4 == 0)
    driver_.check(driver_.cuMemsetD32Async(memory, 0, size / 4, stream));
  else
    driver_.check(driver_.cuMemsetD8Async(memory, 0, size, stream));
}

Stream Device::new_stream() const {
  Stream stream = nullptr;
  driver_.check(driver_.cuStreamCreate(&stream, kNonBlocking));
  return stream;
}

void* Device::new_event() const {
  void* event = nullptr;
  driver_.check(driver_.cuEventCreate(&event, kEventWithoutTiming));
  return event;
}

// Returns the side stream for a stream. One that has joined the capture of a CUDA graph belongs to it until the capture
// ends: work from any other stream would invalidate the capture, and fail. So each captured stream has its own. All are
// made here: torch returns each stream of its pool to several callers, one of which may capture it.
Stream Device::side_of(Stream stream) {
  if (!is_capturing(stream)) {
    if (side_) return side_;
    captured_sides_.push_back({nullptr, new_stream()});  // a capture may not allow to make one
    return side_ = new_stream();
  }
  CapturedSide* found = nullptr;
  for (CapturedSide& known : captured_sides_) {
    if (known.stream == stream && known.stream) return known.side;
    if (!found && !is_capturing(known.side)) found = &known;
  }
  if (!found) found = &captured_sides_.emplace_back(CapturedSide{nullptr, new_stream()});
  found->stream = stream;
  return found->side;
}

Stream Device::fork(Stream stream) {
  enter();
  const std::lock_guard guard(order_lock_);
  const Stream side = side_of(stream);
  if (!event_) event_ = new_event();
  driver_.check(driver_.cuEventRecord(event_, stream));
  driver_.check(driver_.cuStreamWaitEvent(side, event_, 0));
  return side;
}

void* Device::mark_side(Stream stream) {
  enter();
  const std::lock_guard guard(order_lock_);
  if (marks_.empty()) marks_.push_back(new_event());
  void* const mark = marks_.back();
  driver_.check(driver_.cuEventRecord(mark, side_of(stream)));
  marks_.pop_back();
  return mark;
}

void Device::wait_for_mark(Stream stream, void* mark) {
  enter();
  const std::lock_guard guard(order_lock_);
  const int status = driver_.cuStreamWaitEvent(stream, mark, 0);
  marks_.push_back(mark);  // a wait is for what was recorded before
  driver_.check(status);
}

void Device::zero_on_side_stream(Stream stream, Address memory, std::int64_t bytes) {
  zero(fork(stream), memory, bytes);
}

void Device::join(Stream stream) {
  enter();
  const std::lock_guard guard(order_lock_);
  if (!event_) event_ = new_event();
  driver_.check(driver_.cuEventRecord(event_, side_of(stream)));
  driver_.check(driver_.cuStreamWaitEvent(stream, event_, 0));
}

std::int64_t Device::wait_for_number(Stream stream, Address word) {
  constexpr int kReads = 1 << 14;  // of a fraction of a microsecond each: then the thread sleeps
  auto* const place = reinterpret_cast<std::int64_t*>(word);
  const std::atomic_ref<std::int64_t> number(*place);
  for (int i = 0; i < kReads; ++i) {
    if (const std::int64_t found = number.load(std::memory_order_acquire); found >= 0) return found;
    relax();
  }
  enter();
  driver_.check(driver_.cuStreamSynchronize(stream));
  const std::int64_t found = number.load(std::memory_order_acquire);
  if (found < 0) throw DriverError("a CUDA kernel ended without the number that the host waits for");
  return found;
}

void Device::synchronize() {
  void* callers = nullptr;
  driver_.check(driver_.cuCtxGetCurrent(&callers));
  enter();
  const int status = driver_.cuCtxSynchronize();
  driver_.check(driver_.cuCtxSetCurrent(callers));
  driver_.check(status);
}

bool Device::is_capturing(Stream stream) const {
  int status = 0;
  driver_.check(driver_.cuStreamIsCapturing(stream, &status));
  return status != 0;
}

void SideWork::wait() {
  if (!is_pending_) return;
  is_pending_ = false;
  if (mark_)
    device_.wait_for_mark(stream_, mark_);
  else
    device_.join(stream_);
}

SideWork::~SideWork() noexcept(false) {
  try {
    wait();
  } catch (const DriverError&) {
    if (std::uncaught_exceptions() == 0) throw;
  }
}

}  // namespace rowgrad::cuda
