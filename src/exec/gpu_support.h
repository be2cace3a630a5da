// Which GPU a kernel's machine code runs on: pure functions of plain numbers, so that every refusal can be tested without a GPU.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace winnow {

struct Gpu {
  std::string name;    // "NVIDIA H200"
  int capability = 0;  // 10 * major + minor: 90
};

// Machine code in this build, of one kernel. There is no PTX: a GPU without code is refused instead of compiled for at start.
struct GpuCode {
  // As in CMAKE_CUDA_ARCHITECTURES: "80" runs on 8.0 and later 8.x, "90a" on 9.0 only.
  std::span<const std::string> targets;
  int lowest = 0;         // capability that the source needs: 80
  bool portable = false;  // the source can be compiled for any later GPU, with WINNOW_CUDA_ARCHS
};

bool runs_on(const std::string& target, int capability);

// What the kernel needs to run there, or empty if it does: "a GPU of compute capability 9.0; NVIDIA A100 has 8.0".
std::string unmet_capability(const GpuCode& code, const Gpu& gpu);

// The targets of a list "80,90a".
std::vector<std::string> split_targets(const std::string& list);

std::string capability_text(int capability);  // "9.0"

}  // namespace winnow
