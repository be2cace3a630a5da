// Memory and time of a GPU for programs that measure attention calls on it: no CUDA header is needed to use them. In builds
// without CUDA, cuda_absent.cc has the same functions.
#pragma once

#include <cstddef>
#include <functional>

namespace winnow::cuda {

// Between the host's memory and that of a GPU. All work queued before is done first, and the copy when they return. Throw Error.
void copy_to_device(void* to, const void* from, std::size_t bytes, int gpu);
void copy_to_host(void* to, const void* from, std::size_t bytes, int gpu);

// Seconds that the GPU takes for what `queue` puts on the default stream, by its own clock; waits for it. Throws Error.
double seconds_of(const std::function<void()>& queue, int gpu);

}  // namespace winnow::cuda
