#include "driver.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace rowgrad::cuda {
namespace {

void* open_library() {
#if defined(_WIN32)
  return reinterpret_cast<void*>(LoadLibraryA("nvcuda.dll"));
#else
  return dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
#endif
}

void* find(void* library, const char* name) {
#if defined(_WIN32)
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
#else
  return dlsym(library, name);
#endif
}

Driver load() {
  void* const library = open_library();
  if (!library) throw DriverError("the CUDA driver was not found");
  Driver driver;
#define ROWGRAD_FIND(name, ...)                                                               \
  driver.name = reinterpret_cast<decltype(driver.name)>(find(library, #name));                \
  if (!driver.name) throw DriverError("the installed CUDA driver is too old: it lacks " #name);
  ROWGRAD_DRIVER_FUNCTIONS(ROWGRAD_FIND)
#undef ROWGRAD_FIND
  return driver;
}

}  // namespace

void Driver::fail(int status) const {
  const char* text = nullptr;
  if (cuGetErrorString(status, &text) != 0 || !text) text = "unknown error";
  throw DriverError("CUDA: " + std::string(text) + " (" + std::to_string(status) + ")");
}

const Driver& Driver::installed() {
  static const Driver driver = load();
  return driver;
}

Driver Driver::of(const std::map<std::string, std::uintptr_t>& functions) {
  Driver driver;
#define ROWGRAD_TAKE(name, ...)                                                           \
  if (const auto found = functions.find(#name); found != functions.end() && found->second) \
    driver.name = reinterpret_cast<decltype(driver.name)>(found->second);                 \
  else                                                                                    \
    throw std::invalid_argument("a driver needs the function " #name);
  ROWGRAD_DRIVER_FUNCTIONS(ROWGRAD_TAKE)
#undef ROWGRAD_TAKE
  return driver;
}

}  // namespace rowgrad::cuda
