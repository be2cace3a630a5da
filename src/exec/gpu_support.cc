#include "exec/gpu_support.h"

#include <algorithm>
#include <cstdlib>

namespace winnow {

namespace {

int capability_of(const std::string& target) { return std::atoi(target.c_str()); }
bool is_exact(const std::string& target) { return !target.empty() && target.back() == 'a'; }

}  // namespace

std::string capability_text(int capability) { return std::to_string(capability / 10) + "." + std::to_string(capability % 10); }

bool runs_on(const std::string& target, int capability) {
  const int of = capability_of(target);
  return is_exact(target) ? of == capability : of / 10 == capability / 10 && of <= capability;
}

std::vector<std::string> split_targets(const std::string& list) {
  std::vector<std::string> targets;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) targets.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return targets;
}

std::string unmet_capability(const GpuCode& code, const Gpu& gpu) {
  std::string supported;
  int nearest = 0;
  for (const std::string& target : code.targets) {
    if (runs_on(target, gpu.capability)) return {};
    const int capability = capability_of(target);
    supported += (supported.empty() ? "" : ", ") + capability_text(capability);
    if (std::abs(capability - gpu.capability) < std::abs(nearest - gpu.capability)) nearest = capability;
  }
  const std::string found = gpu.name + " has " + capability_text(gpu.capability);
  if (!code.portable) return "a GPU of compute capability " + supported + "; " + found;
  if (gpu.capability < code.lowest) {
    return "a GPU of compute capability " + capability_text(code.lowest) + " or later; " + found + ", the nearest supported is " +
           capability_text(nearest);
  }
  return "code for compute capability " + capability_text(gpu.capability) + " (" + gpu.name + "); this build has it for " + supported +
         ", the nearest is " + capability_text(nearest) + "; build with -DWINNOW_CUDA_ARCHS=" + std::to_string(gpu.capability);
}

}  // namespace winnow
