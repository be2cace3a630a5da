// TilePlan to DevicePlan: one list per row, its order of work, the bits of its virtual keys.
#include <algorithm>
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

void check_geometry(const PlanGeometry& g) {
  if (g.tile_q != cuda::kTileQ || g.tile_k != cuda::kTileK || g.mean_group != cuda::kTileK) {
    const auto text = [](int q, int k, int mean) {
      return "tiles of " + std::to_string(q) + " queries x " + std::to_string(k) + " keys, means of " + std::to_string(mean) + " keys";
    };
    throw Error("cuda",
                "plan: expected " + text(cuda::kTileQ, cuda::kTileK, cuda::kTileK) + ", got " + text(g.tile_q, g.tile_k, g.mean_group));
  }
  if (g.query_layout || g.key_layout) {
    throw Error("cuda", "plan: expected tiles in token order, got a plan with a layout (token_order cubes, spans or packed documents)");
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // the kernels count CTAs and tokens in 32 bits
  if (g.rows() > kMost || g.B * g.H * g.Gk() > kMost || g.Sq > kMost || g.Sk > kMost) {
    throw Error("cuda", "plan: expected at most 2^30 tokens, rows and key tiles of all heads, got Sq=" + std::to_string(g.Sq) +
                            " Sk=" + std::to_string(g.Sk) + ", " + std::to_string(g.rows()) + " rows, " +
                            std::to_string(g.B * g.H * g.Gk()) + " key tiles");
  }
}

// What a plan takes of device memory, in elements. 0: not needed.
struct Sizes {
  std::int64_t rows = 0;
  std::int64_t listed = 0;
  std::int64_t excluded = 0;
  std::int64_t mean_words = 0;  // of all rows
  std::int64_t key_lengths = 0;
  bool means = false;
};

Sizes sizes_of(const TilePlan& plan) {
  const PlanGeometry& g = plan.geometry();
  check_geometry(g);
  Sizes n;
  n.key_lengths = static_cast<std::int64_t>(g.key_lengths.size());
  if (plan.is_identity()) return n;
  n.rows = g.rows();
  std::int64_t represented = 0;
  for (std::int64_t r = 0; r < n.rows; ++r) {
    const auto tiles = static_cast<std::int64_t>(plan.tiles(Tier::refine, r).size() + plan.tiles(Tier::skim, r).size());
    const auto excluded = static_cast<std::int64_t>(plan.excluded(r).size());
    n.listed += tiles;
    n.excluded += excluded;
    represented += std::max<std::int64_t>(0, g.key_tiles(r / (g.H * g.Gq())) - tiles - excluded);
  }
  n.means = plan.skipped() == Skipped::mean && represented > 0;
  if (n.means) n.mean_words = n.rows * cuda::mean_words(g.Sk);
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

}  // namespace

std::size_t DevicePlan::bytes(const TilePlan& plan) {
  const Sizes n = sizes_of(plan);
  std::size_t total = 0;
  const auto add = [&](std::int64_t count, std::size_t size) {  // as a workspace rounds it
    total += (std::max<std::size_t>(static_cast<std::size_t>(count) * size, 1) + 63) / 64 * 64;
  };
  if (n.key_lengths > 0) add(n.key_lengths, sizeof(std::int32_t));
  if (plan.is_identity()) return total;
  add(n.rows + 1, sizeof(std::int64_t));
  add(n.listed, sizeof(std::int32_t));
  add(n.rows, sizeof(std::int32_t));
  if (n.means) {
    add(n.rows + 1, sizeof(std::int64_t));
    add(n.excluded, sizeof(std::int32_t));
    add(n.mean_words, sizeof(std::uint32_t));
  }
  return total;
}

DevicePlan::DevicePlan(const TilePlan& plan, DeviceWorkspace& ws, void* stream_) : geometry_(plan.geometry()) {
  const Sizes n = sizes_of(plan);
  const bool lists = !plan.is_identity() && n.rows > 0;
  if (!lists && n.key_lengths == 0) return;
  device_index_ = ws.device_index();
  const cuda::OnDevice on(device_index_);
  const auto stream = static_cast<cudaStream_t>(stream_);
  std::vector<std::int32_t> lengths;  // host memory that is copied from lives until the stream has been waited for
  HostLists listed, excluded;
  if (n.key_lengths > 0) {
    lengths.assign(geometry_.key_lengths.begin(), geometry_.key_lengths.end());
    lists_.key_lengths = copy_to_device(lengths, ws, stream);
  }
  if (lists) {
    listed = flatten(n.rows, n.listed, [&](std::int64_t r, std::vector<std::int32_t>& tiles) {
      const auto refine = plan.tiles(Tier::refine, r), skim = plan.tiles(Tier::skim, r);
      std::merge(refine.begin(), refine.end(), skim.begin(), skim.end(), std::back_inserter(tiles));
    });
    lists_.offsets = copy_to_device(listed.offsets, ws, stream);
    lists_.tiles = copy_to_device(listed.tiles, ws, stream);
    auto* order = ws.allocate<std::int32_t>(static_cast<std::size_t>(n.rows));
    const auto heads =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(kGroupBytes / (kBytesPerKey * static_cast<double>(geometry_.Sk + 1))));
    cuda::order_rows(lists_.offsets, order, n.rows, std::min(heads, geometry_.B * geometry_.H) * geometry_.Gq(), stream);
    lists_.order = order;
  }
  if (n.means) {
    excluded = flatten(n.rows, n.excluded, [&](std::int64_t r, std::vector<std::int32_t>& tiles) {
      tiles.insert(tiles.end(), plan.excluded(r).begin(), plan.excluded(r).end());
    });
    const std::int64_t* excluded_offsets = copy_to_device(excluded.offsets, ws, stream);
    const std::int32_t* excluded_tiles = copy_to_device(excluded.tiles, ws, stream);
    auto* bits = ws.allocate<std::uint32_t>(static_cast<std::size_t>(n.mean_words));
    cuda::mark_means(bits, n.rows, geometry_.H * geometry_.Gq(), geometry_.Sk, lists_.key_lengths, lists_.offsets, lists_.tiles, nullptr,
                     nullptr, excluded_offsets, excluded_tiles, stream);
    lists_.mean_bits = bits;
  }
  cuda::check(cudaStreamSynchronize(stream), "cuda", "plan");
}

}  // namespace winnow
