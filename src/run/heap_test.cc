// A repeated attention call takes nothing from the heap: every operator new of this program is counted.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "core/random.h"
#include "winnow/session.h"
#include "winnow/workspace.h"

namespace {
std::atomic<std::int64_t> news{0};

// Not inlined: GCC would see free() meet its own operator new's result and warn.
[[gnu::noinline]] void release(void* p) noexcept { std::free(p); }
}  // namespace

void* operator new(std::size_t bytes) {
  ++news;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void operator delete(void* p) noexcept { release(p); }
void operator delete(void* p, std::size_t) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete[](void* p, std::size_t) noexcept { release(p); }

namespace winnow {
namespace {

TEST(Heap, RepeatedCallsAllocateNothing) {
  constexpr std::int64_t S = 600;
  const Tensor q(DType::f32, {1, S, 4, 16});
  const Tensor k(DType::f32, {1, S, 2, 16});
  const Tensor v(DType::f32, {1, S, 2, 16});
  const Tensor out(DType::f32, {1, S, 4, 16});
  fill_normal({q.as<float>(), static_cast<std::size_t>(q.numel())}, 1);
  fill_normal({k.as<float>(), static_cast<std::size_t>(k.numel())}, 2);
  for (const char* name : {R"({"method":"dense"})", R"({"method":"mean_pool","cdf":0.5})", R"({"method":"oracle","density":0.5})",
                           R"({"method":"skip_softmax","threshold":0.01})"}) {
    AttentionSession session(parse_attention_config(name));
    Workspace ws;
    const StepContext context;
    session.attend(context, q, k, v, out, ws);
    ws.reset();
    session.attend(context, q, k, v, out, ws);
    const std::size_t from_system = ws.system_allocations();
    const std::int64_t before = news;
    session.attend(context, q, k, v, out, ws);
    EXPECT_EQ(news - before, 0) << name;
    EXPECT_EQ(ws.system_allocations(), from_system) << name;
  }
}

}  // namespace
}  // namespace winnow
