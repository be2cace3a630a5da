// TilePlan to DevicePlan: one list per row, its order of work, the bits of its virtual keys.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "exec/cuda/attend_cuda.h"
#include "exec/cuda/runtime.h"
#include "winnow/cuda.h"

namespace winnow {

namespace {

// K and V of a group of heads are read by its rows one after another, and fit into this much of the L2 cache.
constexpr double kGroupBytes = 30e6;
constexpr double kBytesPerKey = 2 * 2 * 128;  // K and V, 16 bits, D = 128

bool has_layout(const PlanGeometry& g) { return g.query_layout || g.key_layout; }
std::int64_t padded_queries(const PlanGeometry& g) { return g.Gq() * cuda::kTileQ; }
std::int64_t padded_keys(const PlanGeometry& g) { return g.Gk() * cuda::kTileK; }

void check_geometry(const PlanGeometry& g) {
  if (g.tile_q != cuda::kTileQ || g.tile_k != cuda::kTileK || g.mean_group != cuda::kTileK) {
    const auto text = [](int q, int k, int mean) {
      return "tiles of " + std::to_string(q) + " queries x " + std::to_string(k) + " keys, means of " + std::to_string(mean) + " keys";
    };
    throw Error("cuda",
                "plan: expected " + text(cuda::kTileQ, cuda::kTileK, cuda::kTileK) + ", got " + text(g.tile_q, g.tile_k, g.mean_group));
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // the kernels count CTAs and tokens in 32 bits
  if (g.rows() >= kMost || g.B * g.H * g.Gk() >= kMost || g.B * padded_queries(g) >= kMost || g.B * padded_keys(g) >= kMost) {
    throw Error("cuda", "plan: expected fewer than 2^30 tokens (in full tiles), rows and key tiles of all heads, got Sq=" +
                            std::to_string(g.Sq) + " Sk=" + std::to_string(g.Sk) + ", " + std::to_string(g.rows()) + " rows, " +
                            std::to_string(g.B * g.H * g.Gk()) + " key tiles");
  }
}

// What a plan takes of device memory, in elements. 0: not needed.
struct Sizes {
  std::int64_t list_rows = 0;  // a dense plan with a layout needs lists, the same ones for all heads
  std::int64_t listed = 0;
  std::int64_t excluded = 0;
  std::int64_t mean_words = 0;  // of a row
  std::int64_t key_lengths = 0;
  bool means = false;
  bool layout = false;
};

Sizes sizes_of(const TilePlan& plan) {
  const PlanGeometry& g = plan.geometry();
  check_geometry(g);
  Sizes n;
  n.key_lengths = static_cast<std::int64_t>(g.key_lengths.size());
  n.layout = has_layout(g);
  n.mean_words = cuda::mean_words(padded_keys(g));
  if (plan.is_identity()) {
    if (n.layout && g.rows() > 0) n.list_rows = g.Gq();
    for (std::int64_t r = 0; r < n.list_rows; ++r) n.listed += g.candidates(0, r).size();
    return n;
  }
  n.list_rows = g.rows();
  std::int64_t represented = 0;
  for (std::int64_t r = 0; r < n.list_rows; ++r) {
    const auto tiles = static_cast<std::int64_t>(plan.tiles(Tier::refine, r).size() + plan.tiles(Tier::skim, r).size());
    const auto excluded = static_cast<std::int64_t>(plan.excluded(r).size());
    n.listed += tiles;
    n.excluded += excluded;
    represented += std::max<std::int64_t>(0, g.candidates(g.batch(r), g.query_tile(r)).size() - tiles - excluded);
  }
  n.means = plan.skipped() == Skipped::mean && represented > 0;
  if (!n.means) n.excluded = 0;  // what is not listed does not exist
  return n;
}

// One tier or more as flat lists in host memory.
struct HostLists {
  std::vector<std::int64_t> offsets;
  std::vector<std::int32_t> tiles;
};

template <class F>
HostLists flatten(std::int64_t rows, std::int64_t total, F append) {
  HostLists lists;
  lists.offsets.reserve(static_cast<std::size_t>(rows + 1));
  lists.tiles.reserve(static_cast<std::size_t>(total));
  lists.offsets.push_back(0);
  for (std::int64_t r = 0; r < rows; ++r) {
    append(r, lists.tiles);
    lists.offsets.push_back(static_cast<std::int64_t>(lists.tiles.size()));
  }
  return lists;
}

template <class T>
T* copy_to_device(const std::vector<T>& from, DeviceWorkspace& ws, cudaStream_t stream) {
  T* to = ws.allocate<T>(from.size());
  if (!from.empty()) cuda::check(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice, stream), "cuda", "plan");
  return to;
}

// A layout as the kernels read it.
struct Tables {
  std::vector<std::int32_t> query_tokens, query_rows, key_tokens, tile_queries, tile_keys, candidates;
  std::vector<float> mean_log2;
};

// `tiles` tiles of `size` rows, each row's token or -1.
template <class Begin>
std::vector<std::int32_t> rows_of_tiles(std::int64_t tiles, int size, const std::int32_t* tokens, Begin begin) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(tiles * size), -1);
  for (std::int64_t t = 0; t < tiles; ++t) {
    for (std::int64_t p = begin(t); p < begin(t + 1); ++p) {
      rows[static_cast<std::size_t>(t * size + p - begin(t))] = tokens != nullptr ? tokens[p] : static_cast<std::int32_t>(p);
    }
  }
  return rows;
}

Tables tables_of(const PlanGeometry& g, const Sizes& n) {
  Tables t;
  t.query_tokens = rows_of_tiles(g.Gq(), cuda::kTileQ, g.query_tokens(), [&](std::int64_t i) { return g.query_begin(i); });
  t.key_tokens = rows_of_tiles(g.Gk(), cuda::kTileK, g.key_tokens(), [&](std::int64_t i) { return g.key_begin(0, i); });
  t.query_rows.assign(static_cast<std::size_t>(g.Sq), -1);
  for (std::size_t row = 0; row < t.query_tokens.size(); ++row) {
    if (t.query_tokens[row] >= 0) t.query_rows[static_cast<std::size_t>(t.query_tokens[row])] = static_cast<std::int32_t>(row);
  }
  for (std::int64_t i = 0; i < g.Gq(); ++i) {
    t.tile_queries.push_back(static_cast<std::int32_t>(g.tile_queries(i)));
    const TileRange range = g.candidates(0, i);
    if (n.means) t.candidates.insert(t.candidates.end(), {static_cast<std::int32_t>(range.begin), static_cast<std::int32_t>(range.end)});
  }
  for (std::int64_t i = 0; i < g.Gk(); ++i) t.tile_keys.push_back(static_cast<std::int32_t>(g.tile_keys(0, i)));
  if (n.means) {
    t.mean_log2.assign(static_cast<std::size_t>(32 * n.mean_words), 0.0F);
    for (std::size_t i = 0; i < t.tile_keys.size(); ++i) {
      t.mean_log2[i] = std::log2(static_cast<float>(t.tile_keys[i]) / static_cast<float>(cuda::kTileK));
    }
  }
  return t;
}

// What a list says of a key tile.
std::int32_t entry_of(const PlanGeometry& g, std::int64_t b, std::int32_t tile) {
  if (!has_layout(g)) return tile;
  return tile | static_cast<std::int32_t>(cuda::kTileK - g.tile_keys(b, tile)) << cuda::kMissingShift;
}

HostLists listed_tiles(const TilePlan& plan, const Sizes& n) {
  const PlanGeometry& g = plan.geometry();
  return flatten(n.list_rows, n.listed, [&](std::int64_t r, std::vector<std::int32_t>& tiles) {
    const std::size_t first = tiles.size();
    if (plan.is_identity()) {
      const TileRange all = g.candidates(0, r);
      for (std::int64_t t = all.begin; t < all.end; ++t) tiles.push_back(static_cast<std::int32_t>(t));
    } else {
      const auto refine = plan.tiles(Tier::refine, r), skim = plan.tiles(Tier::skim, r);
      std::merge(refine.begin(), refine.end(), skim.begin(), skim.end(), std::back_inserter(tiles));
    }
    for (std::size_t i = first; i < tiles.size(); ++i) tiles[i] = entry_of(g, g.batch(r), tiles[i]);
  });
}

}  // namespace

std::size_t DevicePlan::bytes(const TilePlan& plan) {
  const PlanGeometry& g = plan.geometry();
  const Sizes n = sizes_of(plan);
  std::size_t total = 0;
  const auto add = [&](std::int64_t count, std::size_t size = sizeof(std::int32_t)) {  // as a workspace rounds it
    total += (std::max<std::size_t>(static_cast<std::size_t>(count) * size, 1) + 63) / 64 * 64;
  };
  if (n.key_lengths > 0) add(n.key_lengths);
  if (n.layout) {
    for (const std::int64_t count : {padded_queries(g), g.Sq, padded_keys(g), g.Gq(), g.Gk()}) add(count);
  }
  if (n.list_rows == 0) return total;
  add(n.list_rows + 1, sizeof(std::int64_t));
  add(n.listed);
  if (!plan.is_identity()) add(n.list_rows);
  if (n.means) {
    add(n.list_rows + 1, sizeof(std::int64_t));
    add(n.excluded);
    add(n.list_rows * n.mean_words);
    if (n.layout) add(32 * n.mean_words), add(2 * g.Gq());
  }
  return total;
}

DevicePlan::DevicePlan(const TilePlan& plan, DeviceWorkspace& ws, void* stream_) : geometry_(plan.geometry()) {
  const PlanGeometry& g = geometry_;
  const Sizes n = sizes_of(plan);
  if (n.list_rows == 0 && n.key_lengths == 0 && !n.layout) return;
  device_index_ = ws.device_index();
  const cuda::OnDevice on(device_index_);
  const auto stream = static_cast<cudaStream_t>(stream_);
  std::vector<std::int32_t> lengths;  // host memory that is copied from lives until the stream has been waited for
  HostLists listed, excluded;
  Tables tables;
  if (n.key_lengths > 0) {
    lengths.assign(g.key_lengths.begin(), g.key_lengths.end());
    lists_.key_lengths = copy_to_device(lengths, ws, stream);
  }
  if (n.layout) {
    tables = tables_of(g, n);
    lists_.query_tokens = copy_to_device(tables.query_tokens, ws, stream);
    lists_.query_rows = copy_to_device(tables.query_rows, ws, stream);
    lists_.key_tokens = copy_to_device(tables.key_tokens, ws, stream);
    lists_.tile_queries = copy_to_device(tables.tile_queries, ws, stream);
    lists_.tile_keys = copy_to_device(tables.tile_keys, ws, stream);
  }
  if (n.list_rows > 0) {
    listed = listed_tiles(plan, n);
    lists_.offsets = copy_to_device(listed.offsets, ws, stream);
    lists_.tiles = copy_to_device(listed.tiles, ws, stream);
    if (plan.is_identity()) lists_.period = n.list_rows;
  }
  if (n.list_rows > 0 && !plan.is_identity()) {
    auto* order = ws.allocate<std::int32_t>(static_cast<std::size_t>(n.list_rows));
    const auto heads = std::max<std::int64_t>(1, static_cast<std::int64_t>(kGroupBytes / (kBytesPerKey * static_cast<double>(g.Sk + 1))));
    cuda::order_rows(lists_.offsets, order, n.list_rows, std::min(heads, g.B * g.H) * g.Gq(), stream);
    lists_.order = order;
  }
  if (n.means) {
    excluded = flatten(n.list_rows, n.excluded, [&](std::int64_t r, std::vector<std::int32_t>& tiles) {
      tiles.insert(tiles.end(), plan.excluded(r).begin(), plan.excluded(r).end());
    });
    const std::int64_t* excluded_offsets = copy_to_device(excluded.offsets, ws, stream);
    const std::int32_t* excluded_tiles = copy_to_device(excluded.tiles, ws, stream);
    auto* bits = ws.allocate<std::uint32_t>(static_cast<std::size_t>(n.list_rows * n.mean_words));
    const std::int32_t* candidates = nullptr;
    if (n.layout) {
      lists_.mean_log2 = copy_to_device(tables.mean_log2, ws, stream);
      candidates = copy_to_device(tables.candidates, ws, stream);
    }
    cuda::mark_means(bits, n.list_rows, g.H * g.Gq(), padded_keys(g), lists_.key_lengths, lists_.offsets, lists_.tiles, nullptr, nullptr,
                     excluded_offsets, excluded_tiles, candidates, g.Gq(), stream);
    lists_.mean_bits = bits;
  }
  cuda::check(cudaStreamSynchronize(stream), "cuda", "plan");
}

}  // namespace winnow
