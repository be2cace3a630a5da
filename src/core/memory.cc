#include "core/memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace winnow {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::uint64_t read_limit(const fs::path& file) {
  std::uint64_t bytes = 0;
  return std::ifstream(file) >> bytes ? bytes : kUnlimited;  // "max" is no number
}

// `apply` to the folder of a group below `mount` and to those of every group above it.
template <class Apply>
void for_each_group(const fs::path& mount, const std::string& group, Apply apply) {
  fs::path relative = fs::path(group).relative_path().lexically_normal();
  // A container may see its own group at the mount itself, while the name is the host's: missing folders limit nothing.
  for (; !relative.empty(); relative = relative.parent_path()) apply(mount / relative);
  apply(mount);
}

void limit_v2(const fs::path& mount, const std::string& group, MemorySize& memory) {
  for_each_group(mount, group, [&](const fs::path& folder) {
    memory.ram = std::min(memory.ram, read_limit(folder / "memory.max"));
    memory.swap = std::min(memory.swap, read_limit(folder / "memory.swap.max"));
  });
}

void limit_v1(const fs::path& mount, const std::string& group, MemorySize& memory) {
  std::uint64_t both = kUnlimited;
  for_each_group(mount, group, [&](const fs::path& folder) {
    memory.ram = std::min(memory.ram, read_limit(folder / "memory.limit_in_bytes"));
    both = std::min(both, read_limit(folder / "memory.memsw.limit_in_bytes"));
  });
  memory.swap = std::min(memory.swap, both - std::min(both, memory.ram));
}

bool lists(const std::string& names, const std::string& name) { return ("," + names + ",").find("," + name + ",") != std::string::npos; }

}  // namespace

MemorySize usable_memory(const fs::path& root, MemorySize machine) {
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/group", in version 2 "0::/group"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) limit_v2(mount, group, machine);
    if (lists(controllers, "memory")) limit_v1(mount / "memory", group, machine);
  }
  return machine;
}

MemorySize usable_memory() {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return {.ram = kUnlimited, .swap = 0};
  const MemorySize machine = {.ram = std::uint64_t{info.totalram} * info.mem_unit, .swap = std::uint64_t{info.totalswap} * info.mem_unit};
  return usable_memory("/", machine);
}

}  // namespace winnow
