#include "winnow/block_mask.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/npy.h"
#include "core/safetensors.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace winnow {

namespace {

constexpr int kMaxBlock = 65536;  // as tiles
constexpr const char* kTensor = "mask";

[[noreturn]] void refuse(const std::string& what, const std::string& expected, const std::string& found) {
  throw Error("block mask", what + ": expected " + expected + ", got " + found);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::string shape_text(std::initializer_list<std::int64_t> shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "[" : ",") + std::to_string(extent);
  return text + "]";
}

// The mask as [B,H,Gq,Gk], with stride 0 along what it is the same for.
class Blocks {
 public:
  Blocks(const BlockMask& mask, const PlanGeometry& geometry) : mask_(mask), g_(geometry) {
    check_sizes();
    const TensorView& keep = mask.keep;
    if (keep.device != Device::cpu) refuse("mask", "memory of the cpu", "another device's");
    if (keep.dtype != DType::boolean && keep.dtype != DType::u8) refuse("mask", "bool or u8", dtype_name(keep.dtype));
    const std::int64_t rows = ceil_div(g_.Sq, mask.block_q);
    const std::int64_t columns = ceil_div(g_.Sk, mask.block_k);
    const std::int64_t want[4] = {g_.B, g_.H, rows, columns};
    bool fits = keep.rank >= 2 && keep.rank <= 4;
    for (int axis = 4 - keep.rank; fits && axis < 4; ++axis) {
      const std::int64_t extent = keep.size(axis - (4 - keep.rank));
      const std::int64_t stride = keep.stride(axis - (4 - keep.rank));
      const bool shared = axis < 2 && extent == 1;
      fits = extent == want[axis] || shared;
      strides_[axis] = shared ? 0 : stride;
    }
    if (!fits) {
      refuse("mask",
             "[" + std::to_string(g_.B) + " or 1," + std::to_string(g_.H) + " or 1," + std::to_string(rows) + "," +
                 std::to_string(columns) + "] for blocks of " + std::to_string(mask.block_q) + "x" + std::to_string(mask.block_k) +
                 " and " + shape_text({g_.Sq, g_.Sk}) + " queries and keys",
             keep.describe());
    }
    if (keep.data == nullptr && keep.numel() > 0) refuse("mask", keep.describe() + " in memory", "a null pointer");
    check_values();
  }

  // Calls visit(key tile) for the valid ones that a plan's row computes, ascending.
  template <class Visit>
  void each_tile(std::int64_t row, Visit&& visit) const {
    const std::int64_t b = g_.batch(row);
    const std::int64_t block = g_.query_tile(row) * g_.tile_q / mask_.block_q;
    const std::uint8_t* keep = at(b, row / g_.Gq() % g_.H, block);
    const std::int64_t per_block = mask_.block_k / g_.tile_k;
    for (std::int64_t tile = 0; tile < g_.key_tiles(b); ++tile) {
      if (keep[tile / per_block * strides_[3]] != 0) visit(static_cast<std::int32_t>(tile));
    }
  }

 private:
  void check_sizes() const {
    const auto check = [](const char* name, int block, int tile) {
      if (block < 1 || block > kMaxBlock) refuse(name, "1 to " + std::to_string(kMaxBlock), std::to_string(block));
      if (block % tile != 0) refuse(name, "a multiple of the plan's tile, " + std::to_string(tile), std::to_string(block));
    };
    g_.validate();
    check("block_q", mask_.block_q, g_.tile_q);
    check("block_k", mask_.block_k, g_.tile_k);
    if (g_.query_layout || g_.key_layout) {
      refuse("geometry", "none of spans, documents and token orders: the mask's blocks are runs of the sequence", "a token layout");
    }
  }

  void check_values() const {
    const TensorView& keep = mask_.keep;
    const std::int64_t batches = strides_[0] == 0 ? 1 : g_.B;
    const std::int64_t heads = strides_[1] == 0 ? 1 : g_.H;
    for (std::int64_t b = 0; b < batches; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < keep.size(keep.rank - 2); ++i) {
          const std::uint8_t* row = at(b, h, i);
          for (std::int64_t j = 0; j < keep.size(keep.rank - 1); ++j) {
            if (row[j * strides_[3]] > 1) {
              refuse("mask" + shape_text({b, h, i, j}), "0 or 1", std::to_string(row[j * strides_[3]]));
            }
          }
        }
      }
    }
  }

  const std::uint8_t* at(std::int64_t b, std::int64_t h, std::int64_t block) const {
    return mask_.keep.as<const std::uint8_t>() + b * strides_[0] + h * strides_[1] + block * strides_[2];
  }

  const BlockMask& mask_;
  const PlanGeometry& g_;
  std::int64_t strides_[4] = {};
};

// Owned, as bytes.
Tensor copy_of(const TensorView& view) {
  Tensor copy(view.dtype, view.shape.data(), view.rank);
  if (view.numel() > 0) std::memcpy(copy.as<void>(), view.data, static_cast<std::size_t>(view.numel()));
  return copy;
}

int size_in(const std::map<std::string, std::string>& metadata, const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return 0;
  int size = 0;
  const char* last = found->second.data() + found->second.size();
  const auto [end, status] = std::from_chars(found->second.data(), last, size);
  if (status != std::errc() || end != last || size < 1 || size > kMaxBlock) {
    refuse(key, "1 to " + std::to_string(kMaxBlock), "\"" + found->second + "\"");
  }
  return size;
}

LoadedBlockMask read_safetensors(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  LoadedBlockMask loaded;
  if (!file.contains(kTensor)) throw Error("block mask", "expected a plan, or the tensor \"mask\"; got neither");
  const TensorView view = file.at(kTensor);
  if (view.dtype != DType::boolean && view.dtype != DType::u8) refuse(kTensor, "BOOL or U8", view.describe());
  loaded.memory = copy_of(view);
  loaded.mask.block_q = size_in(file.metadata(), "block_q");
  loaded.mask.block_k = size_in(file.metadata(), "block_k");
  return loaded;
}

// The size that is stated, by the file or by the setting.
int agree(const char* name, int in_file, int setting) {
  if (in_file != 0 && setting != 0 && in_file != setting) refuse(name, "the file's " + std::to_string(in_file), std::to_string(setting));
  if (in_file == 0 && setting == 0) refuse(name, "a size, as the file does not state the blocks'", "none");
  return std::max(in_file, setting);
}

}  // namespace

TilePlan plan_from_block_mask(const BlockMask& mask, PlanGeometry geometry, Skipped skipped, Workspace* ws) {
  const Blocks blocks(mask, geometry);
  PlanBuilder builder(geometry, skipped, ws);
  const std::span<std::int64_t> counts = builder.counts(Tier::refine);
  for (std::int64_t row = 0; row < geometry.rows(); ++row) {
    blocks.each_tile(row, [&](std::int32_t) { ++counts[static_cast<std::size_t>(row)]; });
  }
  builder.allocate();
  for (std::int64_t row = 0; row < geometry.rows(); ++row) {
    std::int32_t* next = builder.tiles(Tier::refine, row).data();
    blocks.each_tile(row, [&](std::int32_t tile) { *next++ = tile; });
  }
  return std::move(builder).finish();
}

LoadedBlockMask load_block_mask(const std::string& path, int block_q, int block_k) {
  try {
    LoadedBlockMask loaded;
    if (is_npy_file(path)) {
      loaded.memory = read_npy(path);
    } else {
      loaded = read_safetensors(path);
    }
    const int rank = loaded.memory.view().rank;
    if (rank < 2 || rank > 4) refuse("mask", "2 to 4 axes", loaded.memory.view().describe());
    loaded.mask.keep = loaded.memory;
    loaded.mask.block_q = agree("block_q", loaded.mask.block_q, block_q);
    loaded.mask.block_k = agree("block_k", loaded.mask.block_k, block_k);
    return loaded;
  } catch (const Error& error) {
    if (std::string_view(error.message()).find(path) != std::string_view::npos) throw;
    throw Error("block mask", path + ": " + error.message());
  }
}

}  // namespace winnow
