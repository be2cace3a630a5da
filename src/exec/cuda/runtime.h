// Two helpers around the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "winnow/error.h"

namespace winnow::cuda {

inline void check(cudaError_t e, const char* operation, const char* what) {
  if (e != cudaSuccess) throw Error(operation, std::string(what) + ": " + cudaGetErrorString(e));
}

// Makes a GPU the calling thread's, and gives back the one before.
class OnDevice {
 public:
  explicit OnDevice(int index) {
    check(cudaGetDevice(&before_), "cuda", "cudaGetDevice");
    if (index != before_) check(cudaSetDevice(index), "cuda", "cudaSetDevice");
    changed_ = index != before_;
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace winnow::cuda
