// Whether this machine can run the row arithmetic compiled for a level above the baseline.
#pragma once
#ifdef ROWGRAD_X86_LEVELS

#if defined(_WIN32)
#include <immintrin.h>
#include <intrin.h>
#endif

namespace rowgrad {

// Clang before 18 knows features, not levels, and on Windows its runtime library lacks what __builtin_cpu_supports reads.
// The features tested here came with the rest of their level.
#if defined(_WIN32)
struct CpuWords {
  int eax, ebx, ecx, edx;
  static CpuWords of(int leaf) {
    int words[4];
    __cpuidex(words, leaf, 0);
    return {words[0], words[1], words[2], words[3]};
  }
};

// Whether the operating system saves the registers of these bits of XCR0 for each thread.
#if defined(__clang__) || defined(__GNUC__)
__attribute__((target("xsave")))
#endif
inline bool saves_registers(unsigned long long bits) {
  constexpr int kOsXsave = 1 << 27;
  return (CpuWords::of(1).ecx & kOsXsave) && (_xgetbv(0) & bits) == bits;
}

inline bool has_v3() {
  constexpr int kFma = 1 << 12, kAvx2 = 1 << 5, kBmi2 = 1 << 8;
  if (CpuWords::of(0).eax < 7 || !saves_registers(0x06)) return false;
  const int extended = CpuWords::of(7).ebx;
  return (CpuWords::of(1).ecx & kFma) && (extended & kAvx2) && (extended & kBmi2);
}
inline bool has_v4() {
  constexpr unsigned kF = 1u << 16, kDq = 1u << 17, kCd = 1u << 28, kBw = 1u << 30, kVl = 1u << 31;
  constexpr unsigned kAll = kF | kDq | kCd | kBw | kVl;
  return has_v3() && saves_registers(0xe6) && (static_cast<unsigned>(CpuWords::of(7).ebx) & kAll) == kAll;
}
#elif defined(__clang__) && __clang_major__ < 18
inline bool has_v3() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
inline bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
inline bool has_v3() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("x86-64-v3");
}
inline bool has_v4() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("x86-64-v4");
}
#endif

}  // namespace rowgrad

#endif
