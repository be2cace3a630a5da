// Limits of control groups, from files as both versions of the interface have them.
#include "core/memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"

namespace winnow {
namespace {

constexpr MemorySize kMachine = {.ram = 1000, .swap = 500};

class UsableMemory : public tests::FolderTest {
 protected:
  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path(file)).parent_path());
    std::ofstream(path(file)) << text << '\n';
  }
  void expect(std::uint64_t ram, std::uint64_t swap) const {
    const MemorySize usable = usable_memory(folder(), kMachine);
    EXPECT_EQ(usable.ram, ram);
    EXPECT_EQ(usable.swap, swap);
  }
};

TEST_F(UsableMemory, IsTheMachinesWithoutGroups) {
  expect(1000, 500);
  write("proc/self/cgroup", "nonsense\n:\n0:\n3:cpu:/a");
  write("sys/fs/cgroup/a/memory.max", "10");
  expect(1000, 500);
}

TEST_F(UsableMemory, Version2TakesTheSmallestOfTheGroupAndThoseAboveIt) {
  write("proc/self/cgroup", "0::/jobs/one");
  write("sys/fs/cgroup/jobs/one/memory.max", "max");
  write("sys/fs/cgroup/jobs/one/memory.swap.max", "0");
  expect(1000, 0);
  write("sys/fs/cgroup/jobs/memory.max", "300");
  expect(300, 0);
  write("sys/fs/cgroup/jobs/one/memory.max", "200");
  expect(200, 0);
  write("sys/fs/cgroup/jobs/one/memory.max", "5000");
  expect(300, 0);
  write("sys/fs/cgroup/other/memory.max", "1");
  expect(300, 0);
}

TEST_F(UsableMemory, Version2InAContainerThatSeesItsGroupAtTheTop) {
  write("proc/self/cgroup", "0::/");
  write("sys/fs/cgroup/memory.max", "400");
  expect(400, 500);
}

TEST_F(UsableMemory, Version1LimitsMemoryAndItsSumWithSwap) {
  write("proc/self/cgroup", "5:cpu,memory:/host/name\n0::/");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "400");  // the container's group, though it is named otherwise
  expect(400, 500);
  write("sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "600");
  expect(400, 200);
  write("sys/fs/cgroup/memory/host/name/memory.limit_in_bytes", "100");
  write("sys/fs/cgroup/memory/host/name/memory.memsw.limit_in_bytes", "100");
  expect(100, 0);
  write("sys/fs/cgroup/memory/host/name/memory.limit_in_bytes", "9223372036854771712");  // how version 1 writes "no limit"
  write("sys/fs/cgroup/memory/host/name/memory.memsw.limit_in_bytes", "9223372036854771712");
  expect(400, 200);
}

TEST_F(UsableMemory, OfThisMachineIsSomething) {
  EXPECT_GT(usable_memory().ram, 1U << 20U);
  EXPECT_GE(usable_memory().total(), usable_memory().ram);
}

}  // namespace
}  // namespace winnow
