// What this machine can do at most: the ceiling beside every timing.
#pragma once

#include <string>
#include <vector>

namespace winnow::report {

struct Peak {
  std::string name;               // "amx_bf16"
  double flops_per_second = 0.0;  // of one thread; a multiply-add is two
};
// Measured in some tens of milliseconds each; instruction sets that the machine or the build lacks are left out.
std::vector<Peak> measure_peaks();

// Names of the instruction sets that Winnow has code for and that this process may use: "AVX2", "AVX-512", ...
std::vector<std::string> isa_names();

}  // namespace winnow::report
