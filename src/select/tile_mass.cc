#include "select/tile_mass.h"

#include <algorithm>
#include <cfloat>

#include "core/threads.h"
#include "prep/block_kernels.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {

struct TileMass::Scratch {
  float* q = nullptr;       // [tile_q, D]
  float* logits = nullptr;  // [tile_q, tile_ld]
  float* row = nullptr;     // [D], one key
  float* max = nullptr;     // [Gk, query_ld] largest logit per key tile and query
  float* sum = nullptr;     // [Gk, query_ld] sum of exp(logit - max)
  float* shift = nullptr;   // [query_ld]
  double* total = nullptr;  // [query_ld]
};

namespace {

const void* at(const TensorView& x, std::int64_t b, std::int64_t s, std::int64_t h) {
  const std::int64_t offset = b * x.stride(0) + s * x.stride(1) + h * x.stride(2);
  return static_cast<const std::byte*>(x.data) + offset * static_cast<std::int64_t>(dtype_bytes(x.dtype));
}

std::int64_t token_at(const std::int32_t* tokens, std::int64_t position) { return tokens != nullptr ? tokens[position] : position; }

}  // namespace

// One token's D elements as f32.
void TileMass::load_row(const TensorView& x, std::int64_t b, std::int64_t token, std::int64_t head, float* out) const {
  kernels_.sum_rows(at(x, b, token, head), x.dtype, x.stride(1), nullptr, 1, D_, out);
}

TileMass::TileMass(const TensorView& q, const TensorView& k, const PlanGeometry& geometry, float scale, Workspace& ws)
    : q_(q), k_(k), geometry_(geometry), scale_(scale), kernels_(block_kernels()), D_(q.size(3)), tile_ld_(padded(geometry.tile_k)) {
  const auto floats = [&ws](std::int64_t n) { return ws.allocate<float>(static_cast<std::size_t>(n)); };
  const std::int64_t query_ld = padded(geometry.tile_q);
  keys_ = floats(geometry.Gk() * D_ * tile_ld_);
  zeros_ = floats(tile_ld_);
  std::fill_n(zeros_, tile_ld_, 0.0F);
  mass_ = floats(geometry.Gq() * geometry.Gk());
  const int workers = num_threads();
  scratch_ = ws.allocate<Scratch>(static_cast<std::size_t>(workers));
  for (int w = 0; w < workers; ++w) {
    scratch_[w] = {floats(geometry.tile_q * D_),
                   floats(geometry.tile_q * tile_ld_),
                   floats(D_),
                   floats(geometry.Gk() * query_ld),
                   floats(geometry.Gk() * query_ld),
                   floats(query_ld),
                   ws.allocate<double>(static_cast<std::size_t>(query_ld))};
  }
}

void TileMass::transpose_keys(std::int64_t b, std::int64_t key_head) {
  parallel_for(geometry_.key_tiles(b), [&](std::int64_t tile, int worker) {
    float* to = keys_ + tile * D_ * tile_ld_;
    float* row = scratch_[worker].row;
    std::fill_n(to, D_ * tile_ld_, 0.0F);
    const std::int64_t first = geometry_.key_begin(b, tile);
    const std::int64_t keys = geometry_.tile_keys(b, tile);
    for (std::int64_t s = 0; s < keys; ++s) {
      load_row(k_, b, token_at(geometry_.key_tokens(), first + s), key_head, row);
      for (std::int64_t d = 0; d < D_; ++d) to[in_panels(s, d, D_)] = row[d];
    }
  });
}

// Per query of the tile: the largest logit, and the sum of exp(logit - largest).
void TileMass::statistics(std::int64_t rows, std::int64_t tile, std::int64_t keys, const Scratch& scratch) {
  const std::int64_t query_ld = padded(geometry_.tile_q);
  kernels_.scores(scratch.q, rows, keys_ + tile * D_ * tile_ld_, tile_ld_, tile_ld_, D_, scale_, zeros_, scratch.logits);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* x = scratch.logits + r * tile_ld_;
    std::fill(x + keys, x + tile_ld_, -FLT_MAX);  // finite, so that the padding adds exactly 0
    const float largest = kernels_.max(x, tile_ld_);
    scratch.max[tile * query_ld + r] = largest;
    scratch.sum[tile * query_ld + r] = kernels_.exp_sum(x, tile_ld_, largest);
  }
}

void TileMass::query_tile(std::int64_t b, std::int64_t h, std::int64_t i, const Scratch& scratch) {
  const std::int64_t query_ld = padded(geometry_.tile_q);
  const std::int64_t first = geometry_.query_begin(i);
  const std::int64_t rows = geometry_.tile_queries(i);
  const TileRange candidates = geometry_.candidates(b, i);
  for (std::int64_t r = 0; r < rows; ++r) {
    load_row(q_, b, token_at(geometry_.query_tokens(), first + r), h, scratch.q + r * D_);
  }
  std::fill_n(scratch.shift, query_ld, -FLT_MAX);
  std::fill_n(scratch.total, query_ld, 0.0);
  for (std::int64_t t = candidates.begin; t < candidates.end; ++t) {
    statistics(rows, t, geometry_.tile_keys(b, t), scratch);
    for (std::int64_t r = 0; r < rows; ++r) scratch.shift[r] = std::max(scratch.shift[r], scratch.max[t * query_ld + r]);
  }
  for (std::int64_t t = candidates.begin; t < candidates.end; ++t) {  // max becomes the tile's weight relative to the row's largest logit
    float* weight = scratch.max + t * query_ld;
    for (std::int64_t r = 0; r < rows; ++r) weight[r] -= scratch.shift[r];
    std::fill(weight + rows, weight + query_ld, 0.0F);
    kernels_.exp_sum(weight, query_ld, 0.0F);
    for (std::int64_t r = 0; r < rows; ++r) {
      weight[r] *= scratch.sum[t * query_ld + r];
      scratch.total[r] += static_cast<double>(weight[r]);
    }
  }
  float* mass = mass_ + i * geometry_.Gk();
  std::fill_n(mass, geometry_.Gk(), 0.0F);
  for (std::int64_t t = candidates.begin; t < candidates.end; ++t) {
    double sum = 0.0;
    for (std::int64_t r = 0; r < rows; ++r) sum += static_cast<double>(scratch.max[t * query_ld + r]) / scratch.total[r];
    mass[t] = static_cast<float>(sum / static_cast<double>(rows));
  }
}

const float* TileMass::head(std::int64_t b, std::int64_t h) {
  const std::int64_t key_head = h / (q_.size(2) / k_.size(2));
  if (loaded_ != b * k_.size(2) + key_head) {
    transpose_keys(b, key_head);
    loaded_ = b * k_.size(2) + key_head;
  }
  parallel_for(geometry_.Gq(), [&](std::int64_t i, int worker) { query_tile(b, h, i, scratch_[worker]); });
  return mass_;
}

}  // namespace winnow
