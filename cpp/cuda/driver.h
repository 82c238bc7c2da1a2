// The functions of the CUDA driver API that the launcher calls, as a table.
//
// The library is opened at run time: building needs no CUDA toolkit, and one wheel per platform serves machines with and
// without a GPU. Tests pass a table of functions that record launches and run the kernels on the host.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>

namespace rowgrad::cuda {

using Address = std::uint64_t;  // of device memory
using Stream = void*;

// Name, and the types of the arguments. Every function returns a status, 0 for success.
#define ROWGRAD_DRIVER_FUNCTIONS(X)                                                                                   \
  X(cuGetErrorString, int, const char**)                                                                              \
  X(cuDeviceGet, int*, int)                                                                                           \
  X(cuDeviceGetCount, int*)                                                                                           \
  X(cuDeviceGetAttribute, int*, int, int)                                                                             \
  X(cuDevicePrimaryCtxRetain, void**, int)                                                                            \
  X(cuCtxGetCurrent, void**)                                                                                          \
  X(cuCtxSetCurrent, void*)                                                                                           \
  X(cuCtxGetDevice, int*)                                                                                             \
  X(cuCtxSynchronize)                                                                                                 \
  X(cuStreamGetCtx, void*, void**)                                                                                    \
  X(cuStreamCreate, void**, unsigned)                                                                                 \
  X(cuStreamSynchronize, void*)                                                                                       \
  X(cuMemAlloc_v2, Address*, std::size_t)                                                                             \
  X(cuMemHostAlloc, void**, std::size_t, unsigned)                                                                    \
  X(cuModuleLoadData, void**, const void*)                                                                            \
  X(cuModuleGetFunction, void**, void*, const char*)                                                                  \
  X(cuFuncSetAttribute, void*, int, int)                                                                              \
  X(cuLaunchKernel, void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) \
  X(cuMemsetD8Async, Address, unsigned char, std::size_t, void*)                                                      \
  X(cuMemsetD32Async, Address, unsigned, std::size_t, void*)                                                          \
  X(cuStreamIsCapturing, void*, int*)                                                                                 \
  X(cuStreamWaitEvent, void*, void*, unsigned)                                                                        \
  X(cuEventCreate, void**, unsigned)                                                                                  \
  X(cuEventRecord, void*, void*)

// An error of the driver, or a driver that was not found.
struct DriverError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Driver {
#define ROWGRAD_FIELD(name, ...) int (*name)(__VA_ARGS__) = nullptr;
  ROWGRAD_DRIVER_FUNCTIONS(ROWGRAD_FIELD)
#undef ROWGRAD_FIELD

  // Throws DriverError with the driver's message unless the status is 0.
  void check(int status) const {
    if (status) fail(status);
  }
  [[noreturn]] void fail(int status) const;

  // The installed driver; throws DriverError if there is none.
  static const Driver& installed();
  // A driver of these functions, by name; throws std::invalid_argument if one is missing.
  static Driver of(const std::map<std::string, std::uintptr_t>& functions);
};

}  // namespace rowgrad::cuda
