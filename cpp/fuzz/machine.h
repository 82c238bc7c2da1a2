// The simulated machine for fuzzing: tasks run in an order that the input chooses, scratch memory has exactly the
// requested size and holds garbage, and physical memory is small.
#pragma once
#include <cstdint>

namespace fuzz {

enum class TaskOrder : std::uint8_t { forwards, backwards, odd_tasks_first };
void set_task_order(TaskOrder order);

constexpr std::int64_t kMemory = std::int64_t{64} << 20;  // bytes that memory_limit() returns

}  // namespace fuzz
