#include "report/capture.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <system_error>

#include "core/partial_file.h"
#include "core/safetensors.h"
#include "winnow/error.h"

namespace winnow::report {

namespace {

namespace fs = std::filesystem;

constexpr const char* kOperation = "capture";
constexpr const char* kExtension = ".safetensors";

template <class T>
bool holds(const std::vector<T>& list, T value) {
  return list.empty() || std::find(list.begin(), list.end(), value) != list.end();
}

std::string digits(int value, std::size_t width) {
  std::string text = std::to_string(value);
  return text.size() < width ? std::string(width - text.size(), '0') + text : text;
}

// The shortest decimal that reads back as this number.
std::string number_text(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string file_name(const StepContext& context) {
  return "step" + digits(context.step, 2) + "_expert" + std::to_string(context.expert) + "_layer" + digits(context.layer, 2) + "_" +
         branch_name(context.branch) + kExtension;
}

std::string grid_text(const Grid& grid) {
  return std::to_string(grid.frames) + "x" + std::to_string(grid.height) + "x" + std::to_string(grid.width);
}

// What is the same for every call of the run.
std::map<std::string, std::string> run_metadata(const GenerateOptions& options, const std::string& model) {
  std::map<std::string, std::string> metadata = {{"model", model}, noise_source(options)};
  metadata["attention"] = to_json(options.attention);
  if (!options.prompt.empty()) metadata["prompt"] = options.prompt;
  if (!options.prompt_embeds.empty()) metadata["prompt_embeds"] = options.prompt_embeds;
  return metadata;
}

void add_call_metadata(std::map<std::string, std::string>& metadata, const AttentionInputs& call) {
  const StepContext& context = call.context;
  metadata["step"] = std::to_string(context.step);
  metadata["num_steps"] = std::to_string(context.num_steps);
  if (context.timestep) metadata["timestep"] = number_text(*context.timestep);
  metadata["expert"] = std::to_string(context.expert);
  metadata["layer"] = std::to_string(context.layer);
  metadata["num_layers"] = std::to_string(context.num_layers);
  metadata["branch"] = branch_name(context.branch);
  metadata["grid"] = grid_text(context.grid);
  metadata["scale"] = number_text(1.0 / std::sqrt(static_cast<double>(call.q.size(3))));
}

// All of `chosen` are from low to high.
void check_numbers(const char* key, const std::vector<int>& chosen, int low, int high) {
  for (const int value : chosen) {
    if (value >= low && value <= high) continue;
    const std::string range = std::to_string(low) + (low == high ? "" : " to " + std::to_string(high));
    throw Error(kOperation, std::string(key) + ": expected " + range + ", got " + std::to_string(value));
  }
}

void check_choice(const CaptureChoice& choice, const std::vector<StepContext>& forwards) {
  const StepContext& first = forwards.front();
  const StepContext& last = forwards.back();
  check_numbers("steps", choice.steps, first.step, last.step);
  check_numbers("layers", choice.layers, 0, first.num_layers - 1);
  check_numbers("experts", choice.experts, first.expert, last.expert);  // the low-noise one comes after the other
  for (const Branch branch : choice.branches) {
    if (std::any_of(forwards.begin(), forwards.end(), [&](const StepContext& forward) { return forward.branch == branch; })) continue;
    throw Error(kOperation,
                "branch: expected cond, got " + std::string(branch_name(branch)) + ": guidance, which adds the other one, is off");
  }
}

class Capturing {
 public:
  Capturing(const GenerateOptions& options, const std::vector<StepContext>& forwards, const CaptureChoice& choice, const std::string& model,
            const std::string& folder)
      : choice_(choice), folder_(folder), run_metadata_(run_metadata(options, model)) {
    check_choice(choice, forwards);
    for (const StepContext& forward : forwards) {
      if (choice.wants_forward(forward)) last_step_ = forward.step;
    }
    if (last_step_ < 0)
      throw Error(kOperation, "expected a self-attention call with the chosen step, expert and branch, found none in this run");
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) throw Error(kOperation, folder + ": " + error.message());
    check_writable(kOperation, (fs::path(folder) / "writable").string());
  }

  void take(const AttentionInputs& call) {
    if (!choice_.wants(call.context)) return;
    std::map<std::string, std::string> metadata = run_metadata_;
    add_call_metadata(metadata, call);
    const std::string path = (fs::path(folder_) / file_name(call.context)).string();
    const std::vector<NamedTensor> tensors = {{"q", call.q}, {"k", call.k}, {"v", call.v}};
    write_safetensors(path, tensors, metadata);
    files_.push_back(path);
  }

  // Whether the run has gone past everything that was chosen.
  bool is_done(const ProgressEvent& event) {
    done_ = done_ || event.stage == "decode" || (event.stage == "denoise" && event.step > last_step_);
    return done_;
  }
  bool done() const { return done_; }
  std::vector<std::string>& files() { return files_; }

 private:
  const CaptureChoice& choice_;
  const std::string& folder_;
  const std::map<std::string, std::string> run_metadata_;
  int last_step_ = -1;  // of those that are chosen
  bool done_ = false;
  std::vector<std::string> files_;
};

// Numbers of the metadata; a file of somebody else may hold anything under these names.
std::optional<std::int64_t> to_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

class MetadataReader {
 public:
  explicit MetadataReader(const SafetensorsFile& file) : file_(file) {}

  void read(const char* key, int& value) const {
    const std::string* text = find(key);
    if (text == nullptr) return;
    const std::optional<std::int64_t> number = to_integer(*text);
    if (!number || *number < 0 || *number > 1 << 20) wrong(key, "an integer from 0 to 2^20", *text);
    value = static_cast<int>(*number);
  }
  void read(const char* key, std::optional<double>& value) const {
    const std::string* text = find(key);
    if (text == nullptr) return;
    double number = 0.0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error != std::errc() || end != text->data() + text->size() || !(number >= 0.0 && number <= 1.0))
      wrong(key, "a number in [0,1]", *text);
    value = number;
  }
  void read(const char* key, Branch& branch) const {
    const std::string* text = find(key);
    if (text == nullptr) return;
    if (*text != "cond" && *text != "uncond") wrong(key, "cond or uncond", *text);
    branch = *text == "cond" ? Branch::conditional : Branch::unconditional;
  }
  void read(const char* key, Grid& grid, std::int64_t tokens) const {
    const std::string* text = find(key);
    if (text == nullptr) return;
    grid = read_grid(*text).value_or(Grid{});
    if (grid.tokens() != tokens || tokens == 0) wrong(key, "FxHxW with " + std::to_string(tokens) + " tokens", *text);
  }

 private:
  const std::string* find(const char* key) const {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? nullptr : &found->second;
  }
  [[noreturn]] void wrong(const char* key, const std::string& expected, const std::string& found) const {
    throw Error(kOperation, file_.name() + ": metadata " + key + ": expected " + expected + ", got \"" + found + "\"");
  }
  const SafetensorsFile& file_;
};

// Owned, so that rows are aligned for the executors.
Tensor load_tensor(const SafetensorsFile& file, const std::string& name) {
  const TensorView stored = file.at(name);
  const bool is_attention_dtype = stored.dtype == DType::f32 || stored.dtype == DType::f16 || stored.dtype == DType::bf16;
  if ((stored.rank != 3 && stored.rank != 4) || !is_attention_dtype) {
    throw Error(kOperation, file.name() + ": " + name + ": expected [S,H,D] or [B,S,H,D] in f32, f16 or bf16, got " + stored.describe());
  }
  if (stored.numel() == 0) throw Error(kOperation, file.name() + ": " + name + ": expected sizes of at least 1, got " + stored.describe());
  if (stored.rank == 4) return file.copy(name);
  const TensorView batch = stored.reshape({1, stored.size(0), stored.size(1), stored.size(2)});
  Tensor copy(stored.dtype, batch.shape.data(), 4);
  convert(batch, copy);
  return copy;
}

std::string sizes(const Capture& capture) { return "q " + capture.q.view().describe() + " and k " + capture.k.view().describe(); }

}  // namespace

bool CaptureChoice::wants_forward(const StepContext& context) const {
  return holds(steps, context.step) && holds(experts, context.expert) && holds(branches, context.branch);
}

bool CaptureChoice::wants(const StepContext& context) const { return holds(layers, context.layer) && wants_forward(context); }

const char* branch_name(Branch branch) { return branch == Branch::conditional ? "cond" : "uncond"; }

std::vector<std::string> capture(const Generate& generate, const GenerateOptions& options, const std::vector<StepContext>& forwards,
                                 const CaptureChoice& choice, const std::string& model, const std::string& folder) {
  Capturing capturing(options, forwards, choice, model, folder);
  GenerateOptions run = options;
  run.attention_observer = [&](const AttentionInputs& call) { capturing.take(call); };
  run.progress = [&](const ProgressEvent& event) { return !capturing.is_done(event) && (!options.progress || options.progress(event)); };
  try {
    generate(run);
  } catch (const Cancelled&) {
    if (!capturing.done()) throw;  // not by us
  }
  return std::move(capturing.files());
}

std::optional<Grid> read_grid(std::string_view text) {
  constexpr std::int64_t kMostPerSide = 1 << 20;
  std::array<std::int64_t, 3> sides{};
  for (std::size_t i = 0; i < sides.size(); ++i) {
    const std::size_t end = i + 1 < sides.size() ? text.find('x') : text.size();
    if (end == std::string_view::npos) return {};
    sides[i] = to_integer(text.substr(0, end)).value_or(0);
    if (sides[i] < 1 || sides[i] > kMostPerSide) return {};
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return Grid{sides[0], sides[1], sides[2]};
}

Capture load_capture(const std::string& path, const std::array<std::string, 3>& names) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  Capture capture;
  capture.name = fs::path(path).stem().string();
  capture.q = load_tensor(file, names[0]);
  capture.k = load_tensor(file, names[1]);
  capture.v = load_tensor(file, names[2]);
  const MetadataReader metadata(file);
  metadata.read("step", capture.context.step);
  metadata.read("num_steps", capture.context.num_steps);
  metadata.read("timestep", capture.context.timestep);
  metadata.read("expert", capture.context.expert);
  metadata.read("layer", capture.context.layer);
  metadata.read("num_layers", capture.context.num_layers);
  metadata.read("branch", capture.context.branch);
  metadata.read("grid", capture.context.grid, capture.q.view().size(1));
  return capture;
}

std::vector<Capture> load_captures(const std::string& folder) {
  std::vector<fs::path> paths;
  try {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.path().extension() == kExtension) paths.push_back(entry.path());
    }
  } catch (const fs::filesystem_error& error) {
    throw Error(kOperation, folder + ": expected a folder with captures: " + error.code().message());
  }
  if (paths.empty()) throw Error(kOperation, folder + ": expected captures (" + kExtension + " files), found none");
  std::sort(paths.begin(), paths.end());
  std::vector<Capture> captures;
  for (const fs::path& path : paths) {
    captures.push_back(load_capture(path.string()));
    captures.back().name = path.lexically_relative(folder).replace_extension().string();
    if (sizes(captures.back()) != sizes(captures.front())) {
      throw Error(kOperation, path.string() + ": expected " + sizes(captures.front()) + " as in " + paths.front().string() + ", got " +
                                  sizes(captures.back()));
    }
  }
  return captures;
}

}  // namespace winnow::report
