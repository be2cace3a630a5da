#include "cli/file_names.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "core/json.h"
#include "report/measure_costs.h"
#include "winnow/error.h"

namespace winnow::cli {

namespace {

namespace fs = std::filesystem;

// Keys of attention and cache settings whose values may be names of files.
constexpr std::array<std::string_view, 5> kFileKeys = {"path", "calibration", "budgets", "map", "profile"};

// Absolute, without links and without a slash at the end.
std::string resolved(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path).lexically_normal();
  const fs::path canonical = fs::weakly_canonical(absolute, error);
  const fs::path& found = error ? absolute : canonical;
  return (found.has_filename() ? found : found.parent_path()).string();
}

std::string parent(const std::string& path) { return fs::path(path).parent_path().string(); }

bool is_file(const std::string& path) {
  std::error_code none;
  return fs::is_regular_file(path, none);
}

bool is_model(const std::string& folder) { return is_file((fs::path(folder) / "model_index.json").string()); }

// Reports and metadata name what was read, as text.
void check_utf8(const std::string& operation, const std::string& path, const std::string& flag) {
  try {
    static_cast<void>(nlohmann::json(path).dump());
  } catch (const nlohmann::json::exception&) {
    throw Error(operation, path + ": expected a name in UTF-8 for " + flag + ", since reports name it");
  }
}

std::string read_and_written(const std::string& read_as, const std::string& written_as) {
  return " is read as " + read_as + " and written as " + written_as;
}

}  // namespace

FileNames::FileNames(std::string operation) : operation_(std::move(operation)) {
  const std::string profile = report::profile_state().path;
  if (!profile.empty()) uses_.try_emplace(resolved(profile), Use{"the cost profile of this machine", false});
}

void FileNames::read(const std::string& path, const std::string& flag) {
  if (path.empty()) return;
  check_utf8(operation_, path, flag);
  uses_.try_emplace(resolved(path), Use{flag, false});
}

void FileNames::read_folder(const std::string& path, const std::string& flag) {
  if (path.empty()) return;
  check_utf8(operation_, path, flag);
  folders_.try_emplace(resolved(path), flag);
  std::error_code unreadable;  // is its reader's to say
  for (fs::recursive_directory_iterator at(path, unreadable), end; !unreadable && at != end; at.increment(unreadable)) {
    std::error_code none;
    if (!at->is_symlink(none)) continue;
    const std::string target = resolved(at->path().string());
    if (at->is_directory(none)) {
      folders_.try_emplace(target, flag);
    } else {
      uses_.try_emplace(target, Use{flag, false});
    }
  }
}

void FileNames::read_model(const std::string& path, const std::string& flag) {
  check_utf8(operation_, path, flag);
  if (is_model(path)) read_folder(path, flag);
}

void FileNames::read_setting(const std::string& text, const std::string& flag) {
  const bool has_file = is_file(text);
  if (has_file) read(text, flag);
  try {
    read_named(parse_json(has_file ? read_text_file(text, operation_) : text, text, operation_), flag);
  } catch (const Error&) {
  }
}

void FileNames::read_named(const nlohmann::json& json, const std::string& flag) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_structured()) read_named(value, flag);
    if (!value.is_string() || std::find(kFileKeys.begin(), kFileKeys.end(), key) == kFileKeys.end()) continue;
    const auto path = value.get<std::string>();
    if (is_file(path)) read(path, "\"" + key + "\" of " + flag);
  }
}

// `folder` and those that it lies in.
void FileNames::check_folders(std::string folder, const std::string& path, const std::string& flag) const {
  for (bool is_root = false; !is_root; folder = parent(folder)) {
    const auto found = folders_.find(folder);
    const std::string read_as = found != folders_.end() ? found->second : is_model(folder) ? "a model" : "";
    if (!read_as.empty()) {
      throw Error(operation_, path + ": the folder " + folder + read_and_written(read_as, flag) + "; choose another folder");
    }
    is_root = parent(folder) == folder;
  }
}

void FileNames::write(const std::string& path, const std::string& flag, const std::string& own_place) {
  if (path.empty()) return;
  if (path == "-")
    throw Error(operation_, flag + ": expected the name of a file, got -, which elsewhere is standard output; ./- is a file");
  const std::string file = resolved(path);
  if (own_place.empty() || file != resolved(own_place)) check_folders(parent(file), path, flag);
  const auto [at, fresh] = uses_.try_emplace(file, Use{flag, true});
  if (fresh) return;
  const Use& other = at->second;
  throw Error(operation_,
              path + ":" + (other.written ? " is written both as " + other.flag + " and as " + flag : read_and_written(other.flag, flag)) +
                  "; choose another name");
}

void FileNames::write_folder(const std::string& path, const std::string& flag) const { check_folders(resolved(path), path, flag); }

}  // namespace winnow::cli
