// The weights of one component: a single safetensors file or shards with an index.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "winnow/tensor.h"

namespace winnow::dit {

class WeightFiles {
 public:
  // `folder` holds diffusion_pytorch_model.safetensors, or its .index.json and the shards that it names.
  // Throws Error for a missing file, an index that does not match its shards, or a shard name that leaves the folder.
  explicit WeightFiles(const std::string& folder);

  // Copies a tensor, converted to `dtype`. Throws Error naming file and key: missing, wrong shape, not a float tensor, NaN or Inf.
  Tensor take(const std::string& key, const std::vector<std::int64_t>& shape, DType dtype);
  // Throws Error naming the first tensors that nobody took. Keys that contain `ignorable` may stay.
  void finish(const std::string& ignorable) const;

 private:
  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t> where_;  // key -> file
  std::set<std::string> taken_;
};

}  // namespace winnow::dit
