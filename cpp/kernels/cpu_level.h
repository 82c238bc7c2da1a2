// Whether this machine can run the row arithmetic compiled for a level above the baseline.
#pragma once
#ifdef ROWGRAD_X86_LEVELS

namespace rowgrad {

// Clang before 18 knows features, not levels. The features tested here came with the rest of their level.
#if defined(__clang__) && __clang_major__ < 18
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
