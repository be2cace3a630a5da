// The layouts that attention calls need, made once per kind of sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "winnow/plan.h"
#include "winnow/session.h"
#include "winnow/token_layout.h"

namespace winnow {

struct Layouts {
  std::shared_ptr<const TokenLayout> queries, keys;
};

// The two sequences of a call: the same one in self-attention. Throws Error if their documents do not correspond.
struct CallSequences {
  TokenSequence queries, keys;
  bool self = true;
};
CallSequences call_sequences(const StepContext& context, std::int64_t Sq, std::int64_t Sk);

// What a dense call needs layouts for: other documents and padding stay out of it too.
bool leaves_tokens_out(const TokenSequence& sequence);

class LayoutCache {
 public:
  // Looks the layouts up by everything that they depend on; nothing is allocated if they are there. Throws Error as make_layout().
  const Layouts& get(const CallSequences& call, const LayoutOptions& options, int tile_q, int tile_k);

 private:
  struct Side {
    std::int64_t num_tokens;
    Grid grid;
    std::vector<TokenSpan> spans;
    std::vector<std::int64_t> documents;
    bool is(const TokenSequence& sequence) const;
  };
  struct Entry {
    Side queries, keys;
    LayoutOptions options;
    int tile_q, tile_k;
    Layouts layouts;
  };
  std::vector<Entry> entries_;  // oldest first
};

}  // namespace winnow
