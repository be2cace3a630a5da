#include "dit/weights.h"

#include <algorithm>
#include <filesystem>

#include "core/finite.h"
#include "core/json.h"
#include "dit/config.h"
#include "winnow/error.h"

namespace winnow::dit {

namespace fs = std::filesystem;

namespace {

constexpr const char* kName = "diffusion_pytorch_model.safetensors";

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) text.append(text.size() == 1 ? "" : ",").append(std::to_string(extent));
  return text + "]";
}

}  // namespace

WeightFiles::WeightFiles(const std::string& folder) : folder_(folder) {
  const fs::path root(folder);
  if (has_entry((root / kName).string())) {
    files_.push_back(SafetensorsFile::open((root / kName).string()));
    for (const std::string& key : files_[0].keys()) where_[key] = 0;
    return;
  }
  const std::string index = (root / (std::string(kName) + ".index.json")).string();
  if (!has_entry(index)) throw Error("model", folder + ": expected " + kName + " or " + kName + ".index.json");
  const nlohmann::json value = parse_json(read_text_file(index, "model"), index, "model");
  const auto map = value.find("weight_map");
  if (!value.is_object() || map == value.end() || !map->is_object()) throw Error("model", index + ": weight_map: expected an object");
  std::map<std::string, std::size_t> opened;
  for (const auto& item : map->items()) {
    if (!item.value().is_string()) throw Error("model", index + ": " + item.key() + ": expected a file name");
    const auto shard = item.value().get<std::string>();
    if (shard.empty() || fs::path(shard).filename() != fs::path(shard) || shard == "." || shard == "..") {
      throw Error("model", index + ": " + item.key() + ": expected a file name without folders, got \"" + shard + "\"");
    }
    const auto [at, added] = opened.try_emplace(shard, files_.size());
    if (added) files_.push_back(SafetensorsFile::open((root / shard).string()));
    if (!files_[at->second].contains(item.key())) {
      throw Error("model", files_[at->second].name() + ": no tensor named " + item.key() + ", which the index places there");
    }
    where_[item.key()] = at->second;
  }
  for (std::size_t i = 0; i < files_.size(); ++i) {
    for (const std::string& key : files_[i].keys()) {
      const auto at = where_.find(key);
      if (at == where_.end() || at->second != i) throw Error("model", files_[i].name() + ": " + key + ": not placed there by the index");
    }
  }
}

Tensor WeightFiles::take(const std::string& key, const std::vector<std::int64_t>& shape, DType dtype) {
  const auto at = where_.find(key);
  if (at == where_.end()) {
    const std::string file = files_.size() == 1 ? files_[0].name() : folder_;
    throw Error("model", file + ": missing tensor " + key + " " + shape_text(shape));
  }
  const SafetensorsFile& file = files_[at->second];
  const TensorView view = file.at(key);
  if (view.rank != static_cast<int>(shape.size()) || !std::equal(shape.begin(), shape.end(), view.shape.begin())) {
    throw Error("model", file.name() + ": " + key + ": expected " + shape_text(shape) + ", got " + view.describe());
  }
  if (view.dtype != DType::f32 && view.dtype != DType::f16 && view.dtype != DType::bf16) {
    throw Error("model", file.name() + ": " + key + ": expected f32, f16 or bf16, got " + dtype_name(view.dtype));
  }
  Tensor tensor = file.copy(key, dtype);
  if (!all_finite(tensor)) {
    throw Error("model",
                file.name() + ": " + key + ": contains NaN or Inf" + (view.dtype == dtype ? "" : std::string(" as ") + dtype_name(dtype)));
  }
  taken_.insert(key);
  return tensor;
}

void WeightFiles::finish(const std::string& ignorable) const {
  std::string extra;
  int count = 0;
  for (const auto& [key, file] : where_) {
    if (taken_.count(key) != 0 || key.find(ignorable) != std::string::npos) continue;
    if (++count <= 5) extra += (extra.empty() ? "" : ", ") + key;
  }
  if (count > 5) extra += " and " + std::to_string(count - 5) + " more";
  if (count > 0) throw Error("model", (files_.size() == 1 ? files_[0].name() : folder_) + ": unexpected tensors: " + extra);
}

}  // namespace winnow::dit
