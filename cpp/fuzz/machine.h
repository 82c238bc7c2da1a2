// The machine that kernels run on here: its threads take turns in an order the input chooses, its scratch memory is as
// large as requested and holds garbage, and there is little of it.
#pragma once
#include <cstdint>

namespace fuzz {

enum class Turns : std::uint8_t { forwards, backwards, odd_first };
void take_turns(Turns turns);

constexpr std::int64_t kMemory = std::int64_t{64} << 20;  // bytes, as memory_limit() has it

}  // namespace fuzz
