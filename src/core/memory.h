// How much memory this process may use.
#pragma once

#include <cstdint>
#include <filesystem>

namespace winnow {

struct MemorySize {
  std::uint64_t ram = 0;   // bytes
  std::uint64_t swap = 0;  // bytes
  std::uint64_t total() const { return ram + swap; }
};

// Of the machine, or of this process's control group (containers, batch systems) where that allows less.
MemorySize usable_memory();

// The same for a machine of the given size whose files lie under `root`: /proc/self/cgroup names the groups, /sys/fs/cgroup has
// their limits, in version 2 (memory.max, memory.swap.max) or 1 (memory.limit_in_bytes, memory.memsw.limit_in_bytes). A
// group is bound by the limits of those above it too. Files that are missing or hold no number limit nothing.
MemorySize usable_memory(const std::filesystem::path& root, MemorySize machine);

}  // namespace winnow
