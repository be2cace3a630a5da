// Plans as safetensors files: docs/plan-format.md.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "core/safetensors.h"
#include "plan/storage.h"
#include "winnow/error.h"
#include "winnow/plan.h"

namespace winnow {

namespace {

constexpr const char* kFormat = "winnow.tile_plan";
constexpr const char* kVersion = "1";
constexpr const char* kQueryLayout = "query_layout";
constexpr const char* kKeyLayout = "key_layout";
constexpr const char* kLists[] = {"refine", "skim", "excluded"};  // in the order of TilePlan::Storage
// A dense plan in memory is O(Gk), its file is not: this bounds what a tiny file can ask for. 2^24 tiles of 64 are 10^9 keys.
constexpr std::int64_t kMaxDenseTiles = std::int64_t{1} << 24;

// Typed, complete and exhaustive reading of a file's metadata and tensors: what is not asked for is an error.
class PlanReader {
 public:
  explicit PlanReader(const SafetensorsFile& file) : file_(file), metadata_(file.metadata()), tensors_(file.keys()) {}

  [[noreturn]] void fail(const std::string& message) const { throw Error("plan", file_.name() + ": " + message); }

  std::string text(const std::string& key) {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) fail("metadata: expected the key \"" + key + "\"");
    std::string value = found->second;
    metadata_.erase(found);
    return value;
  }

  std::string one_of(const std::string& key, std::initializer_list<const char*> values) {
    std::string value = text(key);
    std::string names;
    for (const char* v : values) {
      if (value == v) return value;
      names += (names.empty() ? "" : ", ") + std::string(v);
    }
    fail(key + ": expected " + names + ", got \"" + value + "\"");
  }

  std::int64_t number(const std::string& key) {
    const std::string value = text(key);
    std::int64_t n = 0;
    const auto [end, status] = std::from_chars(value.data(), value.data() + value.size(), n);
    if (status != std::errc() || end != value.data() + value.size()) fail(key + ": expected an integer, got \"" + value + "\"");
    return n;
  }

  int small_number(const std::string& key) {
    const std::int64_t n = number(key);
    if (n < 0 || n > (1 << 30)) fail(key + ": expected 0 to 2^30, got " + std::to_string(n));
    return static_cast<int>(n);
  }

  bool has_tensor(const std::string& key) const { return std::ranges::find(tensors_, key) != tensors_.end(); }

  template <class T>
  std::vector<T> list(const std::string& key, DType dtype) {
    const auto found = std::ranges::find(tensors_, key);
    if (found == tensors_.end()) fail("expected the tensor \"" + key + "\"");
    tensors_.erase(found);
    const TensorView view = file_.at(key);
    if (view.dtype != dtype || view.rank != 1) fail(key + ": expected [n] " + dtype_name(dtype) + ", got " + view.describe());
    std::vector<T> values(static_cast<std::size_t>(view.numel()));
    if (!values.empty()) std::memcpy(values.data(), view.data, values.size() * sizeof(T));
    return values;
  }

  void done() const {
    if (!metadata_.empty()) fail("metadata: unknown key \"" + metadata_.begin()->first + "\"");
    if (!tensors_.empty()) fail("unknown tensor \"" + tensors_.front() + "\"");
  }

 private:
  const SafetensorsFile& file_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> tensors_;
};

// The four tensors of a layout, or null if the file has none.
std::shared_ptr<const TokenLayout> read_layout(PlanReader& reader, const std::string& name, std::int64_t num_tokens) {
  if (!reader.has_tensor(name + ".tokens")) return nullptr;
  TokenLayout::Parts parts;
  parts.num_tokens = num_tokens;
  parts.tokens = reader.list<std::int32_t>(name + ".tokens", DType::i32);
  parts.tile_begin = reader.list<std::int32_t>(name + ".tile_begin", DType::i32);
  parts.document_begin = reader.list<std::int32_t>(name + ".document_begin", DType::i32);
  parts.exact = reader.list<std::uint8_t>(name + ".exact", DType::u8);
  try {
    return std::make_shared<const TokenLayout>(std::move(parts));
  } catch (const Error& error) {
    reader.fail(name + "." + error.message());
  }
}

PlanGeometry read_geometry(PlanReader& reader) {
  PlanGeometry g;
  g.B = reader.number("B");
  g.H = reader.number("H");
  g.Sq = reader.number("Sq");
  g.Sk = reader.number("Sk");
  g.tile_q = reader.small_number("tile_q");
  g.tile_k = reader.small_number("tile_k");
  g.mean_group = reader.small_number("mean_group");
  if (reader.has_tensor("key_lengths")) {
    g.key_lengths = reader.list<std::int64_t>("key_lengths", DType::i64);
    if (g.key_lengths.empty()) reader.fail("key_lengths: expected one entry per batch entry, got none");
  }
  g.query_layout = read_layout(reader, kQueryLayout, g.Sq);
  g.key_layout = read_layout(reader, kKeyLayout, g.Sk);
  return g;
}

DenseReason read_reason(PlanReader& reader) {
  const std::string name = reader.text("reason");
  for (int i = 0; i < kNumDenseReasons; ++i) {
    if (name == dense_reason_name(static_cast<DenseReason>(i))) return static_cast<DenseReason>(i);
  }
  reader.fail("reason: expected the name of a DenseReason, got \"" + name + "\"");
}

std::map<std::string, std::string> metadata_of(const TilePlan& plan) {
  const PlanGeometry& g = plan.geometry();
  return {{"format", kFormat},
          {"version", kVersion},
          {"B", std::to_string(g.B)},
          {"H", std::to_string(g.H)},
          {"Sq", std::to_string(g.Sq)},
          {"Sk", std::to_string(g.Sk)},
          {"tile_q", std::to_string(g.tile_q)},
          {"tile_k", std::to_string(g.tile_k)},
          {"mean_group", std::to_string(g.mean_group)},
          {"form", plan.is_identity() ? "dense" : "lists"},
          {"skipped", plan.skipped() == Skipped::mean ? "mean" : "drop"},
          {"reason", dense_reason_name(plan.reason())}};
}

// A tensor of a plan's list. Views are only read from.
template <class T>
TensorView view_of(std::span<const T> values, DType dtype) {
  static constexpr T kNothing[1] = {};
  return {values.empty() ? kNothing : values.data(), dtype, {static_cast<std::int64_t>(values.size())}};
}

void add_layout(std::vector<NamedTensor>& tensors, const std::string& name, const TokenLayout* layout) {
  if (layout == nullptr) return;
  const TokenLayout::Parts& parts = layout->parts();
  tensors.push_back({name + ".tokens", view_of<std::int32_t>(parts.tokens, DType::i32)});
  tensors.push_back({name + ".tile_begin", view_of<std::int32_t>(parts.tile_begin, DType::i32)});
  tensors.push_back({name + ".document_begin", view_of<std::int32_t>(parts.document_begin, DType::i32)});
  tensors.push_back({name + ".exact", view_of<std::uint8_t>(parts.exact, DType::u8)});
}

}  // namespace

void TilePlan::save(const std::string& path) const {
  std::vector<NamedTensor> tensors;
  if (!geometry_.key_lengths.empty()) {
    tensors.push_back({"key_lengths", view_of<std::int64_t>(geometry_.key_lengths, DType::i64)});
  }
  add_layout(tensors, kQueryLayout, geometry_.query_layout.get());
  add_layout(tensors, kKeyLayout, geometry_.key_layout.get());
  const Lists* lists[] = {&refine_, &skim_, &excluded_};
  for (int which = 0; which < 3 && !identity_; ++which) {
    if (lists[which]->offsets.empty()) continue;
    tensors.push_back({std::string(kLists[which]) + ".offsets", view_of(lists[which]->offsets, DType::i64)});
    tensors.push_back({std::string(kLists[which]) + ".tiles", view_of(lists[which]->tiles, DType::i32)});
  }
  write_safetensors(path, tensors, metadata_of(*this));
}

TilePlan TilePlan::load(const std::string& path) { return read(SafetensorsFile::open(path)); }

TilePlan TilePlan::load(std::span<const std::byte> bytes, const std::string& name) { return read(SafetensorsFile::parse(bytes, name)); }

TilePlan TilePlan::read(const SafetensorsFile& file) {
  PlanReader reader(file);
  reader.one_of("format", {kFormat});
  reader.one_of("version", {kVersion});
  const PlanGeometry geometry = read_geometry(reader);
  const bool dense = reader.one_of("form", {"dense", "lists"}) == "dense";
  const Skipped skipped = reader.one_of("skipped", {"drop", "mean"}) == "mean" ? Skipped::mean : Skipped::drop;
  const DenseReason reason = read_reason(reader);
  try {
    geometry.validate();
    if (dense) {
      if (skipped == Skipped::mean) reader.fail("skipped: expected drop in a dense plan, got mean");
      if (geometry.Gk() > kMaxDenseTiles) reader.fail("Sk: expected at most 2^24 key tiles in a dense plan");
      reader.done();
      return TilePlan::dense(geometry, reason);
    }
    TilePlan plan;
    plan.geometry_ = geometry;
    plan.skipped_ = skipped;
    plan.reason_ = reason;
    plan.storage_ = std::make_unique<Storage>();
    Lists* lists[] = {&plan.refine_, &plan.skim_, &plan.excluded_};
    for (int which = 0; which < 3; ++which) {
      const std::string name = kLists[which];
      if (which != 0 && !reader.has_tensor(name + ".offsets")) continue;
      plan.storage_->offsets[which] = reader.list<std::int64_t>(name + ".offsets", DType::i64);
      plan.storage_->tiles[which] = reader.list<std::int32_t>(name + ".tiles", DType::i32);
      if (plan.storage_->offsets[which].empty()) reader.fail(name + ".offsets: expected rows + 1 entries, got none");
      *lists[which] = {plan.storage_->offsets[which], plan.storage_->tiles[which]};
    }
    reader.done();
    plan.validate();
    return plan;
  } catch (const Error& error) {
    if (std::string_view(error.message()).find(file.name()) != std::string_view::npos) throw;
    reader.fail(error.message());  // from validate(), which does not know the file
  }
}

}  // namespace winnow
