// Which calls are captured, what the files hold, and what reading them refuses; the generator is a stand-in.
#include "report/capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/safetensors.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "winnow/error.h"

namespace winnow::report {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::message_of;

// Four steps on two experts, the first three guided, two layers.
std::vector<StepContext> forwards() {
  std::vector<StepContext> all;
  for (int step = 0; step < 4; ++step) {
    StepContext context = {.expert = step / 2, .num_layers = 2, .step = step, .num_steps = 4, .grid = {2, 2, 2}};
    context.timestep = 1.0 - 0.25 * step;
    all.push_back(context);
    context.branch = Branch::unconditional;
    if (step < 3) all.push_back(context);
  }
  return all;
}

// Every call's q holds step and layer.
struct FakeEngine {
  int forwards_run = 0;

  GenerateResult operator()(const GenerateOptions& options) {
    Tensor q(DType::f32, {1, 8, 1, 4});
    for (const StepContext& forward : forwards()) {
      if (!options.progress({.stage = "denoise", .step = forward.step})) throw Cancelled("generate");
      ++forwards_run;
      for (int layer = 0; layer < 2; ++layer) {
        q.as<float>()[0] = static_cast<float>(10 * forward.step + layer);
        AttentionInputs call = {forward, q, q, q};
        call.context.layer = layer;
        options.attention_observer(call);
      }
    }
    options.progress({.stage = "decode"});
    return {};
  }
};

class Captures : public tests::FolderTest {
 protected:
  std::vector<std::string> run(const CaptureChoice& choice) {
    GenerateOptions options;
    options.prompt = "a ball";
    options.seed = 7;
    options.steps = 4;
    std::vector<std::string> names;
    for (const std::string& file : capture(std::ref(engine_), options, forwards(), choice, "models/m", path("new/folder")))
      names.push_back(fs::path(file).filename().string());
    return names;
  }
  // One file with equal q, k, v of this length.
  void write(const std::string& name, std::int64_t tokens, const std::map<std::string, std::string>& metadata = {}) const {
    const Tensor x(DType::f32, {tokens, 2, 4});
    const NamedTensor tensors[] = {{"q", x}, {"k", x}, {"v", x}};
    fs::create_directories(fs::path(path(name)).parent_path());
    write_safetensors(path(name), tensors, metadata);
  }

  FakeEngine engine_;
};

TEST_F(Captures, WritesTheChosenCallsAndStopsAfterThem) {
  const CaptureChoice choice = {.layers = {1}, .steps = {0, 2}, .branches = {Branch::conditional}};
  EXPECT_THAT(run(choice), ElementsAre("step00_expert0_layer01_cond.safetensors", "step02_expert1_layer01_cond.safetensors"));
  EXPECT_EQ(engine_.forwards_run, 6);
  const Capture read = load_capture(path("new/folder/step02_expert1_layer01_cond.safetensors"));
  EXPECT_EQ(read.q.as<float>()[0], 21.0F);
  EXPECT_EQ(read.context.step, 2);
  EXPECT_EQ(read.context.num_steps, 4);
  EXPECT_EQ(read.context.expert, 1);
  EXPECT_EQ(read.context.layer, 1);
  EXPECT_EQ(read.context.timestep, 0.5);
  EXPECT_EQ(read.context.grid.frames, 2);
  const auto file = SafetensorsFile::open(path("new/folder/step02_expert1_layer01_cond.safetensors"));
  EXPECT_EQ(file.metadata().at("prompt"), "a ball");
  EXPECT_EQ(file.metadata().at("seed"), "7");
  EXPECT_EQ(file.metadata().at("scale"), "0.5");
  EXPECT_EQ(file.metadata().at("model"), "models/m");
}

TEST_F(Captures, EmptyListsStandForAll) {
  EXPECT_EQ(run({}).size(), 14U);
  EXPECT_EQ(load_captures(path("new/folder")).size(), 14U);
  EXPECT_EQ(run({.experts = {1}, .branches = {Branch::unconditional}}).size(), 2U);
}

TEST_F(Captures, TheRunEndsAfterTheLastChosenForward) {
  EXPECT_EQ(run({.experts = {0}}).size(), 8U);
  EXPECT_EQ(engine_.forwards_run, 4);
}

TEST_F(Captures, RefusesChoicesThatNoCallHas) {
  EXPECT_THAT(message_of([&] { run({.steps = {4}}); }), HasSubstr("steps: expected 0 to 3, got 4"));
  EXPECT_THAT(message_of([&] { run({.layers = {0, 2}}); }), HasSubstr("layers: expected 0 to 1, got 2"));
  EXPECT_THAT(message_of([&] { run({.experts = {1, -1}}); }), HasSubstr("experts: expected 0 to 1, got -1"));
  EXPECT_THAT(message_of([&] { run({.steps = {0}, .experts = {1}}); }), HasSubstr("found none in this run"));
  EXPECT_THAT(message_of([&] { run({.steps = {3}, .branches = {Branch::unconditional}}); }), HasSubstr("found none in this run"));
  std::vector<StepContext> one = {forwards().front()};
  const CaptureChoice unguided = {.branches = {Branch::unconditional}};
  EXPECT_THAT(message_of([&] { capture(std::ref(engine_), {}, one, unguided, "m", path("new/folder")); }),
              HasSubstr("branch: expected cond, got uncond"));
  EXPECT_EQ(engine_.forwards_run, 0);
  EXPECT_FALSE(fs::exists(path("new/folder")));
}

TEST_F(Captures, ACancelledRunIsCancelled) {
  GenerateOptions options;
  options.steps = 4;
  options.progress = [](const ProgressEvent& event) { return event.step < 1; };
  EXPECT_THROW(capture(std::ref(engine_), options, forwards(), {}, "m", path("x")), Cancelled);
}

TEST_F(Captures, AFolderThatCannotBeMadeIsAnErrorBeforeTheRun) {
  std::ofstream(path("file")) << "x";
  GenerateOptions options;
  options.steps = 4;
  EXPECT_THAT(message_of([&] { capture(std::ref(engine_), options, forwards(), {}, "m", path("file/below")); }), HasSubstr("file/below"));
  EXPECT_EQ(engine_.forwards_run, 0);
}

TEST_F(Captures, NamesArePathsBelowTheFolder) {
  write("b/second.safetensors", 8);
  write("a/first.safetensors", 8);
  std::ofstream(path("notes.txt")) << "ignored";
  const std::vector<Capture> read = load_captures(folder().string());
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(read[0].name, "a/first");
  EXPECT_EQ(read[1].name, "b/second");
  EXPECT_EQ(read[0].q.view().describe(), "[1,8,2,4] f32");
}

TEST_F(Captures, BadFoldersAndFiles) {
  EXPECT_THAT(message_of([&] { load_captures(path("none")); }), HasSubstr("expected a folder with captures"));
  EXPECT_THAT(message_of([&] { load_captures(folder().string()); }), HasSubstr("found none"));
  write("a.safetensors", 8);
  write("b.safetensors", 9);
  EXPECT_THAT(message_of([&] { load_captures(folder().string()); }), HasSubstr("expected q [1,8,2,4] f32"));
  write("empty.safetensors", 0);
  EXPECT_THAT(message_of([&] { load_capture(path("empty.safetensors")); }), HasSubstr("expected sizes of at least 1"));
  write("c.safetensors", 8, {{"grid", "2x2x3"}});
  EXPECT_THAT(message_of([&] { load_capture(path("c.safetensors")); }), HasSubstr("expected FxHxW with 8 tokens, got \"2x2x3\""));
  write("c.safetensors", 8, {{"grid", "2x2x2x1"}});
  EXPECT_THAT(message_of([&] { load_capture(path("c.safetensors")); }), HasSubstr("grid"));
  write("c.safetensors", 8, {{"step", "-1"}});
  EXPECT_THAT(message_of([&] { load_capture(path("c.safetensors")); }), HasSubstr("metadata step"));
  write("c.safetensors", 8, {{"timestep", "875"}});
  EXPECT_THAT(message_of([&] { load_capture(path("c.safetensors")); }), HasSubstr("metadata timestep"));
  write("c.safetensors", 8, {{"branch", "both"}});
  EXPECT_THAT(message_of([&] { load_capture(path("c.safetensors")); }), HasSubstr("metadata branch"));
  EXPECT_THAT(message_of([&] { load_capture(path("a.safetensors"), {"q", "k", "w"}); }), HasSubstr("w"));
  const Tensor flat(DType::f32, {4, 4});
  const NamedTensor tensors[] = {{"q", flat}, {"k", flat}, {"v", flat}};
  write_safetensors(path("d.safetensors"), tensors);
  EXPECT_THAT(message_of([&] { load_capture(path("d.safetensors")); }), HasSubstr("expected [S,H,D] or [B,S,H,D]"));
}

}  // namespace
}  // namespace winnow::report
