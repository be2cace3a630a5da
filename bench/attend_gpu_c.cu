// C entry points of the CUDA attention kernel for the bench scripts, which load them as a shared library. Not part
// of the Winnow library.
#include <cstdio>
#include <exception>

#include "exec/cuda/attend_cuda.h"

namespace {
template <class F>
int guarded(char* error, int size, F&& f) {
  try {
    f();
    return 0;
  } catch (const std::exception& e) {
    std::snprintf(error, static_cast<std::size_t>(size), "%s", e.what());
    return 1;
  }
}
}  // namespace

using namespace winnow::cuda;

extern "C" {

int winnow_gpu_attend(const AttendCall* call, void* stream, char* error, int error_size) {
  return guarded(error, error_size, [&] { winnow::sm90::launch_attend(*call, static_cast<CUstream_st*>(stream)); });
}

int winnow_gpu_order_rows(const std::int64_t* offsets, std::int32_t* order, std::int64_t rows, std::int64_t rows_per_group, void* stream,
                          char* error, int error_size) {
  return guarded(error, error_size, [&] { order_rows(offsets, order, rows, rows_per_group, static_cast<CUstream_st*>(stream)); });
}

int winnow_gpu_mark_means(std::uint32_t* bits, std::int64_t rows, std::int64_t rows_per_batch, std::int64_t Sk,
                          const std::int32_t* key_lengths, const std::int64_t* refine_offsets, const std::int32_t* refine_tiles,
                          const std::int64_t* skim_offsets, const std::int32_t* skim_tiles, const std::int64_t* excluded_offsets,
                          const std::int32_t* excluded_tiles, void* stream, char* error, int error_size) {
  return guarded(error, error_size, [&] {
    mark_means(bits, rows, rows_per_batch, Sk, key_lengths, refine_offsets, refine_tiles, skim_offsets, skim_tiles, excluded_offsets,
               excluded_tiles, nullptr, 0, static_cast<CUstream_st*>(stream));
  });
}

}  // extern "C"
