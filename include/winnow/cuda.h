// Attention on an NVIDIA GPU: its memory, plans in it, calls on a stream. Needs the standard library only; in a build without
// CUDA everything here can be called and says in an Error what is missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "winnow/attend.h"
#include "winnow/plan.h"
#include "winnow/tensor.h"
#include "winnow/workspace.h"

namespace winnow {

struct GpuInfo {
  int index = 0;
  std::string name;  // "NVIDIA H200"
  int major = 0;     // compute capability
  int minor = 0;
};
std::vector<GpuInfo> gpus();  // of this machine; empty if there is none, no driver, or the build has no CUDA

// A Workspace in the memory of one GPU, lent to the functions below. They give scratch back before the work that uses it has
// run, and rely on the stream's order: one workspace per stream.
class DeviceWorkspace : private Workspace {
 public:
  // Throws Error if the GPU is not there, has no executor, or has too little memory.
  explicit DeviceWorkspace(int device_index = 0, std::size_t initial_bytes = 0);

  int device_index() const { return device_index_; }
  using Workspace::allocate;
  using Workspace::allocate_bytes;
  using Workspace::capacity_bytes;
  using Workspace::peak_bytes;
  using Workspace::reset;
  using Workspace::system_allocations;
  using Workspace::used_bytes;

  class Scope {
   public:
    explicit Scope(DeviceWorkspace& workspace) : scope_(workspace) {}

   private:
    Workspace::Scope scope_;
  };

 private:
  int device_index_;
};

// A TilePlan as the executors of a GPU read it: lists in device memory.
class DevicePlan {
 public:
  // Copies the lists of `plan`; skim and refine tiles become one list, since executors of GPUs compute both in the inputs' dtype.
  // Memory comes from `ws` and lives as long as its scope. A dense plan without key_lengths and layouts needs none and does not touch
  // the device; any other waits for `stream`, and cannot be made inside a graph capture. Throws Error unless tiles are 128 queries x
  // 64 keys and mean groups 64 keys.
  DevicePlan(const TilePlan& plan, DeviceWorkspace& ws, void* stream = nullptr);
  // Device memory that the constructor takes for this plan.
  static std::size_t bytes(const TilePlan& plan);

  const PlanGeometry& geometry() const { return geometry_; }

  // Device memory. Each may be null.
  struct Lists {
    const std::int64_t* offsets = nullptr;      // [rows + 1]; null: every row lists all key tiles of its batch entry
    const std::int32_t* tiles = nullptr;        // [offsets[rows]] ascending in each row
    const std::int32_t* order = nullptr;        // [rows] the order of work, longest rows first; it changes no result
    const std::uint32_t* mean_bits = nullptr;   // [rows, words] bit t: key tile t comes as its mean
    const std::int32_t* key_lengths = nullptr;  // [B]
    // Of a plan with layouts, whose tiles may be short. Entries of `tiles` are tile | missing keys << 24 then, the lists repeat after
    // `period` rows if that is not 0, and attend() fills tiles up: row r of queries is row r % 128 of tile r / 128.
    std::int64_t period = 0;
    const std::int32_t* query_tokens = nullptr;  // [128 Gq] the token of each such row, or -1
    const std::int32_t* query_rows = nullptr;    // [Sq] the row of each token, or -1
    const std::int32_t* key_tokens = nullptr;    // [64 Gk] the token of each row of keys, or -1
    const std::int32_t* tile_queries = nullptr;  // [Gq] tokens of a tile
    const std::int32_t* tile_keys = nullptr;     // [Gk]
    const float* mean_log2 = nullptr;            // [words * 32] log2(tile_keys / 64)
  };
  const Lists& lists() const { return lists_; }
  int device_index() const { return device_index_; }  // -1: nothing is on a device

 private:
  int device_index_ = -1;
  PlanGeometry geometry_;
  Lists lists_;
};

// attend() with all tensors on the GPU of `ws`. Only queues work on options.stream: no waiting, and no memory from the system
// once `ws` has the bytes that the next function gives, so that a call can be captured in a CUDA graph (after a first call, which
// loads the kernels). The tensors, `plan` and `ws` must live until the work has run.
//   q, k, v, out: bf16 or f16, one dtype for all four; D 64 or 128; addresses and the strides of B, S, H multiples of 16 bytes
//   scale > 0; keys at or after key_lengths[b] must be finite; with means, all keys, those of other documents (see TokenLayout) as well
//   Under a layout, q, k, v and out are copied into full tiles and back.
AttendResult attend(const DevicePlan& plan, const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
                    const AttendOptions& options, DeviceWorkspace& ws);
// Scratch that attend() takes from the workspace for these inputs, with any options.
std::size_t attend_workspace_bytes(const DevicePlan& plan, const TensorView& q, const TensorView& k);

}  // namespace winnow
