// CUDA's model of execution on a host processor, for tests: blocks one after the other, the threads of a block as fibers
// that give way where threads wait for each other. The order in which threads take turns is drawn anew from a seed, so
// that a missing barrier shows as a wrong result.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>
#include <xmmintrin.h>

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__

namespace emulated {

constexpr unsigned kWarp = 32;
constexpr std::size_t kStack = 64 * 1024;

extern "C" void rowgrad_swap_fibers(void** from, void* to);
#ifdef ROWGRAD_EMULATION
// Callee-saved registers go on the fiber's own stack.
asm(R"(
.text
.globl rowgrad_swap_fibers
.type rowgrad_swap_fibers,@function
rowgrad_swap_fibers:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size rowgrad_swap_fibers,.-rowgrad_swap_fibers
)");
#endif

// Threads of a warp that meet in one operation, known by their mask.
struct Meeting {
  unsigned mask = 0, arrived = 0;
  unsigned long generation = 0;
  std::uint64_t values[2][kWarp];
};

struct Fiber {
  void* stack_pointer = nullptr;
  std::vector<unsigned char> stack;
  unsigned index = 0;
  bool done = true;
};

struct Machine {
  Dim3 grid, block, block_index;
  std::vector<Fiber> fibers;
  std::vector<std::vector<Meeting>> meetings;  // by warp
  std::vector<unsigned char> shared;
  unsigned running = 0, at_barrier = 0, alive = 0;
  unsigned long barriers = 0;
  long idle = 0;  // turns since anything moved
  void* scheduler = nullptr;
  std::function<void()> body;
  std::uint64_t seed = 1;
};

inline Machine& machine() {
  static Machine m;
  return m;
}

inline unsigned char* shared() { return machine().shared.data(); }

inline void give_way() {
  Machine& m = machine();
  rowgrad_swap_fibers(&m.fibers[m.running].stack_pointer, m.scheduler);
}

inline void moved() { machine().idle = 0; }

inline void run_fiber() {
  Machine& m = machine();
  m.body();
  Fiber& me = m.fibers[m.running];
  me.done = true;
  --m.alive;
  moved();
  give_way();
  std::abort();
}

inline void barrier() {
  Machine& m = machine();
  const unsigned long now = m.barriers;
  ++m.at_barrier;
  moved();
  while (m.barriers == now) {
    if (m.at_barrier >= m.alive) {
      m.at_barrier = 0;
      ++m.barriers;
      moved();
      break;
    }
    give_way();
  }
}

inline bool any_of_block(bool is_so) {
  static bool any = false;
  barrier();
  any = false;
  barrier();
  any |= is_so;
  barrier();
  return any;
}

// All threads of `mask` bring a value and see everybody's.
inline const std::uint64_t* meet(unsigned mask, std::uint64_t value) {
  Machine& m = machine();
  const unsigned lane = m.running % kWarp;
  if (!(mask >> lane & 1u)) {
    std::fprintf(stderr, "emulated: a thread is not in the mask of its own operation\n");
    std::abort();
  }
  auto& all = m.meetings[m.running / kWarp];
  std::size_t at = 0;
  while (at < all.size() && all[at].mask != mask) ++at;
  if (at == all.size()) {
    all.emplace_back();
    all[at].mask = mask;
  }
  const unsigned long now = all[at].generation;
  all[at].values[now & 1][lane] = value;
  moved();
  if (++all[at].arrived == unsigned(__builtin_popcount(mask))) {
    all[at].arrived = 0;
    ++all[at].generation;
  }
  while (m.meetings[m.running / kWarp][at].generation == now) give_way();
  return m.meetings[m.running / kWarp][at].values[now & 1];
}

inline std::uint64_t drawn(std::uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

inline void run_block() {
  Machine& m = machine();
  const unsigned n = m.block.x * m.block.y;
  if (m.fibers.size() < n) m.fibers.resize(n);  // a smaller block leaves stacks for the next larger one
  m.meetings.assign((n + kWarp - 1) / kWarp, {});
  for (auto& warp : m.meetings) warp.reserve(64);
  std::memset(m.shared.data(), 0xcd, m.shared.size());
  m.at_barrier = 0;
  m.alive = n;
  m.idle = 0;
  std::vector<unsigned> turn(n);
  for (unsigned i = 0; i < n; ++i) turn[i] = i;
  for (unsigned i = n - 1; m.seed && i > 0; --i) std::swap(turn[i], turn[drawn(m.seed) % (i + 1)]);
  for (unsigned i = 0; i < n; ++i) {
    Fiber& f = m.fibers[i];
    f.stack.resize(kStack);
    f.index = i;
    f.done = false;
    auto* top = reinterpret_cast<void**>((reinterpret_cast<std::uintptr_t>(f.stack.data()) + kStack) & ~std::uintptr_t{15});
    top -= 2;
    *top = reinterpret_cast<void*>(&run_fiber);  // where the first switch returns to
    f.stack_pointer = top - 6;
  }
  while (m.alive) {
    for (unsigned i : turn) {
      if (m.fibers[i].done) continue;
      m.running = i;
      rowgrad_swap_fibers(&m.scheduler, m.fibers[i].stack_pointer);
    }
    if (m.alive && m.at_barrier < m.alive && ++m.idle > 100000) {
      std::fprintf(stderr, "emulated: the threads of block %u wait for each other\n", m.block_index.x);
      std::abort();
    }
  }
}

inline void run_grid(Dim3 grid, Dim3 block, std::size_t shared_bytes, std::uint64_t seed, std::function<void()> body) {
  Machine& m = machine();
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040u);  // subnormals are zeros
  m.grid = grid;
  m.block = block;
  m.body = std::move(body);
  m.seed = seed;
  m.shared.assign(shared_bytes + 16, 0);
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x) {
      m.block_index = {x, y, 0};
      run_block();
    }
  _mm_setcsr(mode);
}

struct ThreadIndex {
  struct X {
    operator unsigned() const { return machine().running; }
  } x;
};

}  // namespace emulated

static const emulated::ThreadIndex threadIdx{};
#define blockIdx (emulated::machine().block_index)
#define blockDim (emulated::machine().block)
#define gridDim (emulated::machine().grid)

inline void __syncthreads() { emulated::barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulated::meet(mask, 0); }
inline void __threadfence() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { emulated::give_way(); }

template <class T>
std::uint64_t emulated_pack(T value) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
T emulated_unpack(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
inline unsigned emulated_lane() { return emulated::machine().running % emulated::kWarp; }

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const unsigned lane = emulated_lane(), base = lane / width * width;
  return emulated_unpack<T>(emulated::meet(mask, emulated_pack(value))[base + unsigned(from) % width]);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = emulated_lane();
  const auto* all = emulated::meet(mask, emulated_pack(value));
  return lane % width >= delta ? emulated_unpack<T>(all[lane - delta]) : value;
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = emulated_lane();
  const auto* all = emulated::meet(mask, emulated_pack(value));
  return lane % width + delta < unsigned(width) ? emulated_unpack<T>(all[lane + delta]) : value;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned with, int = 32) {
  return emulated_unpack<T>(emulated::meet(mask, emulated_pack(value))[emulated_lane() ^ with]);
}
inline unsigned __ballot_sync(unsigned mask, bool is_so) {
  const auto* all = emulated::meet(mask, is_so);
  unsigned votes = 0;
  for (unsigned i = 0; i < emulated::kWarp; ++i)
    if (mask >> i & 1u) votes |= unsigned(all[i] & 1u) << i;
  return votes;
}
inline bool __any_sync(unsigned mask, bool is_so) { return __ballot_sync(mask, is_so) != 0; }
inline bool __all_sync(unsigned mask, bool is_so) { return __ballot_sync(mask, is_so) == mask; }
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  const std::uint64_t mine = emulated_pack(value);
  const auto* all = emulated::meet(mask, mine);
  unsigned same = 0;
  for (unsigned i = 0; i < emulated::kWarp; ++i)
    if ((mask >> i & 1u) && all[i] == mine) same |= 1u << i;
  return same;
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }

// One fiber runs at a time, so plain reads and writes are atomic.
template <class T, class U>
T atomicAdd(T* p, U value) {
  const T old = *p;
  *p = T(old + T(value));
  return old;
}
template <class T, class U>
T atomicOr(T* p, U value) {
  const T old = *p;
  *p = T(old | T(value));
  return old;
}
template <class T, class U>
T atomicMin(T* p, U value) {
  const T old = *p;
  if (T(value) < old) *p = T(value);
  return old;
}
template <class T, class U>
T atomicMax(T* p, U value) {
  const T old = *p;
  if (T(value) > old) *p = T(value);
  return old;
}
template <class T, class U>
T atomicExch(T* p, U value) {
  const T old = *p;
  *p = T(value);
  return old;
}
template <class T, class U, class V>
T atomicCAS(T* p, U expected, V value) {
  const T old = *p;
  if (old == T(expected)) *p = T(value);
  return old;
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T value) {
  *p = value;
}
inline float __int_as_float(int x) {
  float f;
  std::memcpy(&f, &x, 4);
  return f;
}
