// Text conditioning: a word table, or embeddings that somebody else computed.
#pragma once

#include <map>
#include <string>

#include "dit/config.h"
#include "winnow/tensor.h"

namespace winnow::dit {

// Words of a small vocabulary, each with a fixed row. The order of words carries no meaning to the transformer.
class WordEmbedding {
 public:
  // Reads vocab.json and embedding.safetensors in `folder`. Throws Error.
  WordEmbedding(const std::string& folder, const TextConfig& config);
  // [max_length, embedding_dim] f32: one row per word, then zero rows.
  // Throws Error naming every unknown word, or if there are more words than rows.
  Tensor encode(const std::string& prompt) const;

 private:
  TextConfig config_;
  std::map<std::string, std::int64_t> vocab_;
  Tensor table_;  // [vocab_size, embedding_dim] f32
};

// Text rows for one run: [L, text_dim] f32 each.
struct TextRows {
  Tensor positive, negative;
};
// From a safetensors file with prompt_embeds and, if `need_negative`, negative_prompt_embeds: [L,text_dim] or [1,L,text_dim],
// any float dtype. All rows are attended, so zero rows that pad a prompt belong into the file, as in diffusers. Throws Error.
TextRows load_prompt_embeds(const std::string& path, std::int64_t text_dim, bool need_negative);

}  // namespace winnow::dit
