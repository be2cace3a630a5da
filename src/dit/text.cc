#include "dit/text.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <vector>

#include "core/finite.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "winnow/error.h"

namespace winnow::dit {

namespace {

// ASCII only: the same on every locale.
std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

}  // namespace

WordEmbedding::WordEmbedding(const std::string& folder, const TextConfig& config) : config_(config) {
  const std::string vocab_path = folder + "/vocab.json";
  const nlohmann::json vocab = parse_json(read_text_file(vocab_path, "model"), vocab_path, "model");
  if (!vocab.is_object()) throw Error("model", vocab_path + ": expected an object of words");
  for (const auto& item : vocab.items()) {
    if (!item.value().is_number_unsigned() || item.value().get<std::uint64_t>() >= static_cast<std::uint64_t>(config.vocab_size)) {
      throw Error("model", vocab_path + ": " + item.key() + ": expected a row below vocab_size " + std::to_string(config.vocab_size));
    }
    const auto id = item.value().get<std::int64_t>();
    if (id != config.pad_token_id) vocab_.emplace(config.lowercase ? lower(item.key()) : item.key(), id);
  }
  const auto file = SafetensorsFile::open(folder + "/embedding.safetensors");
  if (file.keys().size() != 1 || !file.contains("embedding.weight"))
    throw Error("model", file.name() + ": expected the one tensor embedding.weight");
  const TensorView view = file.at("embedding.weight");
  if (view.rank != 2 || view.size(0) != config.vocab_size || view.size(1) != config.embedding_dim) {
    throw Error("model", file.name() + ": embedding.weight: expected [" + std::to_string(config.vocab_size) + "," +
                             std::to_string(config.embedding_dim) + "], got " + view.describe());
  }
  table_ = file.copy("embedding.weight", DType::f32);
  if (!all_finite(table_)) throw Error("model", file.name() + ": embedding.weight: contains NaN or Inf");
}

Tensor WordEmbedding::encode(const std::string& prompt) const {
  std::istringstream words(config_.lowercase ? lower(prompt) : prompt);
  std::vector<std::int64_t> ids;
  std::string unknown;
  for (std::string word; words >> word;) {
    const auto found = vocab_.find(word);
    if (found == vocab_.end()) {
      unknown += (unknown.empty() ? "\"" : ", \"") + word + "\"";
    } else {
      ids.push_back(found->second);
    }
  }
  if (!unknown.empty()) throw Error("prompt", "words that this model does not know: " + unknown);
  if (static_cast<std::int64_t>(ids.size()) > config_.max_length) {
    throw Error("prompt", "expected at most " + std::to_string(config_.max_length) + " words, got " + std::to_string(ids.size()));
  }
  Tensor rows(DType::f32, {config_.max_length, config_.embedding_dim});
  const auto dim = static_cast<std::size_t>(config_.embedding_dim);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::memcpy(rows.as<float>() + i * dim, table_.as<float>() + static_cast<std::size_t>(ids[i]) * dim, dim * sizeof(float));
  }
  return rows;
}

TextRows load_prompt_embeds(const std::string& path, std::int64_t text_dim, bool need_negative) {
  const auto file = SafetensorsFile::open(path);
  const auto read = [&](const char* key) {
    if (!file.contains(key)) throw Error("prompt-embeds", path + ": no tensor named " + key);
    TensorView view = file.at(key);
    if (view.rank == 3 && view.size(0) == 1) view = view.reshape({view.size(1), view.size(2)});
    if (view.rank != 2 || view.size(1) != text_dim || view.size(0) < 1) {
      throw Error("prompt-embeds", path + ": " + key + ": expected [L," + std::to_string(text_dim) + "], got " + file.at(key).describe());
    }
    Tensor rows(DType::f32, {view.size(0), text_dim});
    if (!is_convertible(view.dtype)) {
      throw Error("prompt-embeds", path + ": " + key + ": expected f32, f16, bf16 or f64, got " + view.describe());
    }
    convert(view, rows);
    if (!all_finite(rows)) throw Error("prompt-embeds", path + ": " + key + ": contains NaN or Inf");
    return rows;
  };
  TextRows rows;
  rows.positive = read("prompt_embeds");
  if (need_negative) rows.negative = read("negative_prompt_embeds");
  return rows;
}

}  // namespace winnow::dit
