// Which GPU runs what, with GPUs that this machine does not have.
#include "exec/gpu_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exec/cuda/executors.h"
#include "exec/registry.h"
#include "winnow/cuda.h"
#include "winnow/error.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kPortable = split_targets("80,89,90a,100a,120a");
const std::vector<std::string> kExact = split_targets("90a");

std::string unmet_portable(const std::string& name, int capability) {
  return unmet_capability({.targets = kPortable, .lowest = 80, .portable = true}, {name, capability});
}
std::string unmet_exact(const std::string& name, int capability) {
  return unmet_capability({.targets = kExact, .lowest = 90, .portable = false}, {name, capability});
}

TEST(GpuSupport, TargetsAreSplit) {
  EXPECT_EQ(kPortable, (std::vector<std::string>{"80", "89", "90a", "100a", "120a"}));
  EXPECT_TRUE(split_targets("").empty());
}

TEST(GpuSupport, MachineCodeRunsWhereItShould) {
  for (const int capability : {80, 86, 87, 89}) EXPECT_TRUE(runs_on("80", capability)) << capability;
  EXPECT_FALSE(runs_on("80", 75));
  EXPECT_FALSE(runs_on("80", 90));
  EXPECT_FALSE(runs_on("89", 86));
  EXPECT_TRUE(runs_on("90a", 90));
  EXPECT_FALSE(runs_on("100a", 103));
  EXPECT_TRUE(runs_on("100", 103));
  EXPECT_FALSE(runs_on("120a", 121));
}

TEST(GpuSupport, SupportedGpusLackNothing) {
  for (const int capability : {80, 86, 89, 90, 100, 120}) EXPECT_EQ(unmet_portable("some GPU", capability), "") << capability;
  EXPECT_EQ(unmet_exact("NVIDIA H200", 90), "");
}

TEST(GpuSupport, OthersLearnWhatTheyNeed) {
  EXPECT_EQ(unmet_portable("NVIDIA B300", 103),
            "code for compute capability 10.3 (NVIDIA B300); this build has it for 8.0, 8.9, 9.0, 10.0, 12.0, the nearest is 10.0; "
            "build with -DWINNOW_CUDA_ARCHS=103");
  EXPECT_EQ(unmet_portable("Tesla T4", 75), "a GPU of compute capability 8.0 or later; Tesla T4 has 7.5, the nearest supported is 8.0");
  EXPECT_EQ(unmet_exact("NVIDIA A100", 80), "a GPU of compute capability 9.0; NVIDIA A100 has 8.0");
}

TEST(GpuSupport, ExecutorsOfGpusSayWhatTheyNeed) {
  int found = 0;
  for (const ExecutorInfo& info : executors()) {
    if (info.device != Device::cuda) continue;
    ++found;
    EXPECT_EQ(info.head_dims, (std::vector<int>{64, 128}));
    EXPECT_EQ(info.alignment, 16);
    EXPECT_EQ(info.available, info.why_not.empty());
    EXPECT_FALSE(info.requirements.empty());
  }
  EXPECT_EQ(found, 2);
}

// Without a GPU, or without CUDA, everything says so before any work.
TEST(GpuSupport, MissingGpusAreAnError) {
  if (!gpus().empty()) GTEST_SKIP() << "this machine has a GPU";
  try {
    const DeviceWorkspace ws;
    ADD_FAILURE() << "a workspace on a GPU that is not there";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("needs "));
  }
  EXPECT_THAT(query_gpus().why_none, ::testing::AnyOf("a build with WINNOW_CUDA=ON", HasSubstr("NVIDIA")));
}

}  // namespace
}  // namespace winnow
