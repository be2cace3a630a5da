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
                           R"({"method":"subblock"})", R"({"method":"cosine_gate","theta":0.1})", R"({"method":"sol"})",
                           R"({"method":"skip_softmax","threshold":0.01})", R"({"method":"subblock","budget":{}})"}) {
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

// ComfyUI#16175, FastVideo#1851: out of memory only when sparse is on. The bound is known before the call, and no method passes it.
TEST(Workspace, PlanningStaysWithinTheBoundThatIsQueried) {
  const std::pair<std::int64_t, std::int64_t> lengths[] = {{1, 1}, {129, 129}, {2000, 2000}, {4752, 4752}};
  for (const auto& [Sq, Sk] : lengths) {
    const Tensor q(DType::bf16, {2, Sq, 4, 72});
    const Tensor k(DType::bf16, {2, Sk, 2, 72});
    PlanSpec spec;
    spec.grid = {Sk, 1, 1};
    for (const char* name :
         {"mean_pool", "subblock", R"({"method":"subblock","n_k":8,"n_q":8})", R"({"method":"subblock","n_k":1,"n_q":1})", "cosine_gate",
          R"({"method":"sol","tau":-9})", R"({"method":"oracle","cdf":1})"}) {
      const Method method = parse_attention_config(name).method;
      Workspace ws;
      make_plan(q, k, spec, method, ws);
      const std::size_t bound = plan_workspace_bytes(q, k, spec, method);
      EXPECT_LE(ws.peak_bytes(), bound) << name << " S=" << Sk;
      if (Sk > 1000) {
        EXPECT_GE(ws.peak_bytes(), bound / 3) << name << " S=" << Sk;
      }
    }
  }
}

// Twice the tokens take twice the means: nothing but the plan's own lists grows with S^2.
TEST(Workspace, NoQuadraticBuffer) {
  const auto bytes = [](std::int64_t S) {
    const Tensor q(DType::bf16, {1, S, 4, 64});
    const Method method = SubBlock{};
    Workspace ws;
    make_plan(q, q, {}, method, ws);
    return static_cast<double>(ws.peak_bytes());
  };
  EXPECT_LT(bytes(16384) / bytes(8192), 2.2);
}

}  // namespace
}  // namespace winnow
