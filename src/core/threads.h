// The process-wide pool of worker threads.
#pragma once

#include <cstdint>
#include <type_traits>

namespace winnow {

namespace detail {
void parallel_for(std::int64_t n, void (*body)(void* context, std::int64_t i, int worker), void* context);
}

// Runs body(i, worker) for i in [0, n), each once, taken in order, a few at a time; worker is in [0, num_threads()).
// The calling thread takes part. Blocks until all are done; the first exception thrown by a body is rethrown.
// Calls from inside a body run serially on that thread, as worker 0. Allocates nothing.
template <class Body>
void parallel_for(std::int64_t n, Body&& body) {
  using B = std::remove_reference_t<Body>;
  detail::parallel_for(
      n, [](void* context, std::int64_t i, int worker) { (*static_cast<B*>(context))(i, worker); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace winnow
