// Engine: what it refuses before working, how it reports, cancels and fails, and what it allocates.
#include "winnow/engine.h"

#include <gmock/gmock.h>
#include <link.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "core/numeric.h"
#include "engine_testing.h"
#include "tests/support/message_of.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace {

// Allocations by anything but oneDNN, whose execute() allocates a little by itself.
std::atomic<std::uint64_t> allocations{0};
std::uintptr_t dnnl_begin = 0;
std::uintptr_t dnnl_end = 0;

int find_dnnl(dl_phdr_info* info, std::size_t /*size*/, void* /*context*/) {
  if (std::strstr(info->dlpi_name, "libdnnl") == nullptr) return 0;
  dnnl_begin = std::numeric_limits<std::uintptr_t>::max();
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
    const std::uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
    dnnl_begin = std::min(dnnl_begin, begin);
    dnnl_end = std::max(dnnl_end, begin + info->dlpi_phdr[i].p_memsz);
  }
  return 1;
}

void* allocate(std::size_t size, std::size_t alignment, const void* caller) {
  const auto at = reinterpret_cast<std::uintptr_t>(caller);
  if (at < dnnl_begin || at >= dnnl_end) allocations.fetch_add(1, std::memory_order_relaxed);
  void* p =
      alignment == 0 ? std::malloc(size == 0 ? 1 : size) : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

// Not inlined: GCC would see free() meet its own operator new's result and warn.
[[gnu::noinline]] void release(void* p) { std::free(p); }

}  // namespace

void* operator new(std::size_t size) { return allocate(size, 0, __builtin_return_address(0)); }
void* operator new[](std::size_t size) { return allocate(size, 0, __builtin_return_address(0)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, std::size_t /*size*/) noexcept { release(p); }
void operator delete[](void* p, std::size_t /*size*/) noexcept { release(p); }
void operator delete(void* p, std::align_val_t /*alignment*/) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t /*alignment*/) noexcept { release(p); }
void operator delete(void* p, std::size_t /*size*/, std::align_val_t /*alignment*/) noexcept { release(p); }
void operator delete[](void* p, std::size_t /*size*/, std::align_val_t /*alignment*/) noexcept { release(p); }

namespace winnow {
namespace {

using ::testing::HasSubstr;
using testing::source;
using testing::TemporaryFolder;
namespace fs = testing::fs;

const std::string kTiny = "models/winnow-tiny";
const std::string kFixture = "tests/fixtures/wan-diffusers/model";

// 4 tokens of winnow-tiny: a step takes milliseconds.
GenerateOptions small() {
  GenerateOptions options;
  options.prompt = "a small green ring";
  options.width = options.height = 16;
  options.frames = 1;
  options.steps = 4;
  return options;
}

std::string refusal(Engine& engine, const GenerateOptions& options) {
  try {
    engine.generate(options);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Engine, RefusesOptionsBeforeAnyWork) {
  Engine engine(source(kTiny), {});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  bool worked = false;
  const auto with = [&](const auto& change) {
    GenerateOptions options = small();
    options.progress = [&](const ProgressEvent&) { return worked = true; };
    change(options);
    return refusal(engine, options);
  };
  using O = GenerateOptions;
  EXPECT_THAT(with([](O& o) { o.steps = 0; }), HasSubstr("steps: expected 1 to 10000, got 0"));
  EXPECT_THAT(with([](O& o) { o.steps = -3; }), HasSubstr("steps"));
  EXPECT_THAT(with([&](O& o) { o.guidance_scale = nan; }), HasSubstr("guidance_scale: expected a number >= 0, got nan"));
  EXPECT_THAT(with([](O& o) { o.guidance_scale = -1.0; }), HasSubstr("guidance_scale"));
  EXPECT_THAT(with([&](O& o) { o.guidance_scale_2 = inf; }), HasSubstr("guidance_scale_2"));
  EXPECT_THAT(with([](O& o) { o.guidance_until = 1.5F; }), HasSubstr("guidance_until: expected a number in [0,1], got 1.5"));
  EXPECT_THAT(with([&](O& o) { o.guidance_until = static_cast<float>(nan); }), HasSubstr("guidance_until"));
  EXPECT_THAT(with([](O& o) { o.boundary_ratio = 1.5; }), HasSubstr("boundary_ratio: expected a number in [0,1], got 1.5"));
  EXPECT_THAT(with([](O& o) { o.flow_shift = 0.0; }), HasSubstr("flow_shift"));
  EXPECT_THAT(with([&](O& o) { o.flow_shift = nan; }), HasSubstr("flow_shift"));
  EXPECT_THAT(with([](O& o) { o.width = 100; }), HasSubstr("width: expected a positive multiple of 8, got 100"));
  EXPECT_THAT(with([](O& o) { o.width = 1 << 21; }), HasSubstr("width: expected at most 1048576, got 2097152"));
  EXPECT_THAT(with([](O& o) { o.height = -8; }), HasSubstr("height"));
  EXPECT_THAT(with([](O& o) { o.width = 1 << 14; }), HasSubstr("at most 1024 tokens per axis"));
  EXPECT_THAT(with([](O& o) { o.frames = -1; }), HasSubstr("frames"));
  EXPECT_THAT(with([](O& o) { o.frames = 2000; }), HasSubstr("at most 1024 tokens per axis"));
  EXPECT_THAT(with([](O& o) { o.sigma_mode = SigmaMode::wan; }), HasSubstr("sigma_mode"));
  EXPECT_THAT(with([](O& o) {
                o.solver = Solver::unipc;
                o.euler_double_shift = true;
              }),
              HasSubstr("euler_double_shift"));
  EXPECT_THAT(with([](O& o) { o.prompt = "a purple elephant"; }), HasSubstr("\"elephant\""));
  EXPECT_THAT(with([](O& o) { o.negative_prompt = "blurry"; }), HasSubstr("\"blurry\""));
  EXPECT_THAT(with([](O& o) { o.latents = "missing.safetensors"; }), HasSubstr("missing.safetensors"));
  EXPECT_THAT(with([](O& o) { o.attention.executor = "gpu"; }), HasSubstr("executor"));
  EXPECT_THAT(with([](O& o) { o.attention.gate.dense_layers = {6}; }), HasSubstr("dense_layers: expected layers from 0 to 5, got 6"));
  const TemporaryFolder folder;
  Tensor wrong(DType::f32, {1, 48, 1, 2, 2});
  const NamedTensor tensors[] = {{"latents", wrong}};
  write_safetensors(folder / "l.safetensors", tensors);
  EXPECT_THAT(with([&](O& o) { o.latents = folder / "l.safetensors"; }), HasSubstr("expected [1,48,1,4,4] f32, got [1,48,1,2,2] f32"));
  EXPECT_FALSE(worked);
}

TEST(Engine, NeedsEmbeddingsWithoutATextEncoder) {
  Engine engine(source(kFixture), {});
  EXPECT_FALSE(engine.has_codec());
  GenerateOptions options;
  options.prompt = "a";
  options.width = options.height = 64;
  options.frames = 5;
  EXPECT_THAT(refusal(engine, options), HasSubstr("no text encoder; give prompt_embeds"));
  EXPECT_THAT(tests::message_of([&] { engine.check_prompt("a"); }), HasSubstr("no text encoder"));
  options.frames = 6;
  EXPECT_THAT(refusal(engine, options), HasSubstr("frames: expected 4 k + 1, got 6"));
  options.frames = 5;
  options.width = 72;
  EXPECT_THAT(refusal(engine, options), HasSubstr("multiple of 16, got 72"));
}

TEST(Engine, ChecksAPromptWithoutARun) {
  const Engine engine(source(kTiny), {});
  EXPECT_NO_THROW(engine.check_prompt("a red ball"));
  EXPECT_THAT(tests::message_of([&] { engine.check_prompt("a crimson dog"); }), HasSubstr("does not know: \"crimson\", \"dog\""));
}

TEST(Engine, ReportsWhatItDid) {
  Engine engine(source(kTiny), {});
  EXPECT_TRUE(engine.has_codec());
  GenerateOptions options = small();
  options.seed = 7;
  std::vector<ProgressEvent> events;
  options.progress = [&](const ProgressEvent& event) {
    events.push_back(event);
    return true;
  };
  const Estimate estimate = engine.estimate(options);
  const GenerateResult result = engine.generate(options);
  EXPECT_EQ(result.latents.view().describe(), "[1,48,1,4,4] f32");
  EXPECT_EQ(result.frames.view().describe(), "[1,16,16,3] f32");
  EXPECT_EQ(events.size(), 4U * 2U * 6U + 1U);
  EXPECT_EQ(events[0].stage, "denoise");
  EXPECT_EQ(events.back().stage, "decode");
  EXPECT_EQ(result.report.seed, 7U);
  EXPECT_EQ(result.report.high_noise_steps, estimate.high_noise_steps);
  EXPECT_EQ(estimate.tokens, 4);
  EXPECT_GT(estimate.weight_bytes, 2U * 6'249'920U * 2U);
  ASSERT_EQ(estimate.forwards.size(), 2U * result.report.steps.size());
  EXPECT_EQ(estimate.forwards.front().num_layers, 6);
  EXPECT_EQ(estimate.forwards.back().step, 3);
  EXPECT_EQ(estimate.forwards.back().expert, 1);
  EXPECT_EQ(estimate.forwards.back().branch, Branch::unconditional);
  ASSERT_EQ(result.report.steps.size(), estimate.timesteps.size());
  for (std::size_t i = 0; i < estimate.timesteps.size(); ++i) {
    EXPECT_EQ(result.report.steps[i].timestep, estimate.timesteps[i]);
    EXPECT_EQ(result.report.steps[i].expert, static_cast<int>(i) < estimate.high_noise_steps ? 0 : 1);
    EXPECT_EQ(result.report.steps[i].density, 1.0);
  }
  EXPECT_EQ(result.report.attention.calls, 4 * 2 * 6);
  EXPECT_EQ(result.report.attention.by_reason[static_cast<std::size_t>(DenseReason::requested)], 4 * 2 * 6);
  EXPECT_GT(result.report.linear_seconds, 0.0);
  EXPECT_GT(result.report.cross_attention_seconds, 0.0);
  EXPECT_GE(result.report.other_seconds, 0.0);
  EXPECT_LE(result.report.linear_seconds + result.report.cross_attention_seconds, result.report.seconds);

  const Estimate full = engine.estimate(GenerateOptions());
  EXPECT_EQ(full.tokens, 4752);
  EXPECT_EQ(full.high_noise_steps, 13);
  EXPECT_EQ(full.solver, Solver::euler);
  EXPECT_EQ(full.flow_shift, 5.0);
  EXPECT_EQ(full.boundary_ratio, 0.875);
}

TEST(Engine, SameBitsOnAnyNumberOfThreads) {
  Engine engine(source(kTiny), {});
  GenerateOptions options = small();
  options.width = 48;
  options.frames = 13;
  options.steps = 2;
  const int threads = num_threads();
  set_num_threads(1);
  const GenerateResult one = engine.generate(options);
  set_num_threads(3);
  const GenerateResult three = engine.generate(options);
  set_num_threads(threads);
  EXPECT_EQ(std::memcmp(one.latents.view().data, three.latents.view().data, one.latents.bytes()), 0);
  options.seed = 1;
  EXPECT_GT(rel_l2(engine.generate(options).latents, one.latents), 0.1);
}

TEST(Engine, ShowsEveryAttentionCallAndIsNotChangedByIt) {
  Engine engine(source(kTiny), {});
  GenerateOptions options = small();
  const GenerateResult plain = engine.generate(options);
  std::vector<std::string> calls;
  options.attention_observer = [&](const AttentionInputs& call) {
    EXPECT_EQ(call.q.describe(), "[1,4,2,128] bf16");
    EXPECT_EQ(call.k.describe(), call.q.describe());
    EXPECT_EQ(call.v.describe(), call.q.describe());
    EXPECT_NE(call.q.data, call.k.data);
    EXPECT_EQ(call.context.grid.tokens(), 4);
    EXPECT_EQ(call.context.num_layers, 6);
    EXPECT_TRUE(call.context.timestep.has_value());
    calls.push_back(std::to_string(call.context.step) + (call.context.branch == Branch::conditional ? "c" : "u") +
                    std::to_string(call.context.layer));
  };
  const GenerateResult observed = engine.generate(options);
  EXPECT_EQ(std::memcmp(plain.latents.view().data, observed.latents.view().data, plain.latents.bytes()), 0);
  ASSERT_EQ(calls.size(), 4U * 2U * 6U);
  EXPECT_EQ(calls.front(), "0c0");
  EXPECT_EQ(calls[7], "0u1");
  EXPECT_EQ(calls.back(), "3u5");
  options.attention_observer = [](const AttentionInputs&) { throw Error("observer", "enough"); };
  EXPECT_THAT(refusal(engine, options), HasSubstr("enough"));
}

TEST(Engine, CancelsAtEveryStage) {
  int loads = 0;
  EXPECT_THROW(Engine(source(kTiny), {.precision = Precision::bf16, .progress = [&](const ProgressEvent&) { return ++loads < 3; }}),
               Cancelled);
  EXPECT_EQ(loads, 3);
  Engine engine(source(kTiny), {});
  GenerateOptions options = small();
  int calls = 0;
  options.progress = [&](const ProgressEvent&) { return ++calls < 20; };
  EXPECT_THROW(engine.generate(options), Cancelled);
  EXPECT_EQ(calls, 20);
  options.progress = [](const ProgressEvent& event) { return event.stage != "decode"; };
  EXPECT_THROW(engine.generate(options), Cancelled);
  options.progress = {};
  EXPECT_NO_THROW(engine.generate(options));  // the engine is as good as new
}

// Fixture model with one element of a tensor of one expert changed.
std::string broken_model(const TemporaryFolder& folder, const std::string& key, std::int64_t element, float value) {
  fs::copy(source(kFixture), folder.path(), fs::copy_options::recursive);
  const std::string path = folder / "transformer_2/diffusion_pytorch_model.safetensors";
  std::vector<Tensor> copies;
  std::vector<NamedTensor> tensors;
  {
    const auto file = SafetensorsFile::open(path);
    for (const std::string& name : file.keys()) {
      copies.push_back(file.copy(name, DType::f32));
      if (name == key) copies.back().as<float>()[element] = value;
      tensors.push_back({name, copies.back()});
    }
  }
  write_safetensors(path, tensors);
  Tensor rows(DType::f32, {16, 32});
  for (std::int64_t i = 0; i < rows.numel(); ++i) rows.as<float>()[i] = std::sin(static_cast<float>(i));
  const NamedTensor embeds[] = {{"prompt_embeds", rows}, {"negative_prompt_embeds", rows}};
  write_safetensors(folder / "embeds.safetensors", embeds);
  return folder.path();
}

TEST(Engine, NamesWhereNumbersStopBeingFinite) {
  const TemporaryFolder folder;
  // A finite scale of element 0 that overflows where the normalised value is above 1.
  Engine engine(broken_model(folder, "blocks.1.scale_shift_table", 24, std::numeric_limits<float>::max()),
                {.precision = Precision::f32, .progress = {}});
  GenerateOptions options;
  options.prompt_embeds = folder / "embeds.safetensors";
  options.width = options.height = 64;
  options.frames = 5;
  options.steps = 6;
  const std::string text = refusal(engine, options);
  EXPECT_THAT(text, HasSubstr("NaN or Inf in step"));
  EXPECT_THAT(text, HasSubstr("expert 1, conditional: first in q of layer 1"));
  options.guidance_scale = 1e300;  // finite forwards whose guided sum is not
  options.guidance_scale_2 = 0.0;
  EXPECT_THAT(refusal(engine, options), HasSubstr("step 0, expert 0: first in guided velocity"));
}

TEST(Engine, RefusesNonFiniteWeights) {
  const TemporaryFolder folder;
  const std::string path = broken_model(folder, "blocks.0.norm2.weight", 0, std::numeric_limits<float>::quiet_NaN());
  try {
    Engine engine(path, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("transformer_2/diffusion_pytorch_model.safetensors: blocks.0.norm2.weight: contains NaN or Inf"));
  }
}

// oneDNN aside, nothing comes from the heap after the first step, across the change of expert; the Workspace stays as it is.
void expect_no_allocation_in_steps(Precision precision, const std::string& cache) {
  constexpr int kSteps = 9;
  Engine engine(source(kTiny), {.precision = precision, .progress = {}});
  GenerateOptions options = small();
  options.width = options.height = 48;
  options.frames = 9;
  options.steps = kSteps;
  options.cache = parse_step_cache_config(cache);
  std::array<std::uint64_t, kSteps> at_step{};
  std::uint64_t at_end = 0;
  options.progress = [&](const ProgressEvent& event) {
    if (event.stage == "denoise") {
      if (at_step.at(static_cast<std::size_t>(event.step)) == 0) at_step.at(static_cast<std::size_t>(event.step)) = allocations;
      at_end = allocations;
    }
    return true;
  };
  const std::uint64_t before = allocations;
  const GenerateResult result = engine.generate(options);
  EXPECT_GT(result.report.high_noise_steps, 2);
  EXPECT_LT(result.report.high_noise_steps, kSteps - 2);
  EXPECT_EQ(result.report.cache.reused() > 0, options.cache.on());
  EXPECT_GT(at_step[0], before);  // it does count
  EXPECT_EQ(at_end, at_step[1]);
  for (std::size_t step = 2; step < kSteps; ++step) EXPECT_EQ(at_step.at(step), at_step[1]) << step;
}

TEST(Engine, TheStepLoopAllocatesNothing) {
  if (dnnl_end == 0) dl_iterate_phdr(find_dnnl, nullptr);
  expect_no_allocation_in_steps(Precision::bf16, "off");
  expect_no_allocation_in_steps(Precision::f32, "off");
  expect_no_allocation_in_steps(Precision::bf16, R"({"method":"first_block","threshold_high":1e6,"threshold_low":1e6})");
  expect_no_allocation_in_steps(Precision::bf16, R"({"method":"teacache","coefficients":[1,0],"threshold_high":1e6,"threshold_low":1e6})");
}

}  // namespace
}  // namespace winnow
