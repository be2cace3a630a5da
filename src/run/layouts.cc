#include "run/layouts.h"

#include <algorithm>
#include <utility>

#include "winnow/error.h"

namespace winnow {

CallSequences call_sequences(const StepContext& context, std::int64_t Sq, std::int64_t Sk) {
  CallSequences call;
  call.self = context.role == AttentionRole::self && Sq == Sk;
  call.queries = {Sq, context.grid, context.spans, context.documents};
  if (call.self) {
    validate(call.queries);  // also where a dense call would look at nothing of it
    call.keys = call.queries;
    return call;
  }
  // Cross-attention runs dense: of the sequences, only the documents count.
  if (context.documents.size() != context.key_documents.size()) {
    throw Error("session", "key_documents: expected " + std::to_string(context.documents.size()) +
                               " offsets as in documents, which cross-attention of packed documents needs, got " +
                               std::to_string(context.key_documents.size()));
  }
  call.queries.spans = {};
  call.keys = {Sk, {}, {}, context.key_documents};
  return call;
}

bool leaves_tokens_out(const TokenSequence& sequence) {
  return !sequence.documents.empty() ||
         std::ranges::any_of(sequence.spans, [](const TokenSpan& span) { return span.kind == SpanKind::padding; });
}

bool LayoutCache::Side::is(const TokenSequence& sequence) const {
  return num_tokens == sequence.num_tokens && grid == sequence.grid && std::ranges::equal(spans, sequence.spans) &&
         std::ranges::equal(documents, sequence.documents);
}

const Layouts& LayoutCache::get(const CallSequences& call, const LayoutOptions& options, int tile_q, int tile_k) {
  constexpr std::size_t kMost = 16;  // resolutions, dense and sparse calls of a run; the oldest goes first
  for (const Entry& e : entries_) {
    if (e.queries.is(call.queries) && e.keys.is(call.keys) && e.options == options && e.tile_q == tile_q && e.tile_k == tile_k) {
      return e.layouts;
    }
  }
  const auto side = [](const TokenSequence& s) {
    return Side{s.num_tokens, s.grid, {s.spans.begin(), s.spans.end()}, {s.documents.begin(), s.documents.end()}};
  };
  Layouts layouts{make_layout(call.queries, options, tile_q), make_layout(call.keys, options, tile_k)};
  if (entries_.size() == kMost) entries_.erase(entries_.begin());
  return entries_.emplace_back(Entry{side(call.queries), side(call.keys), options, tile_q, tile_k, std::move(layouts)}).layouts;
}

}  // namespace winnow
