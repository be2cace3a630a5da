#include "cli/file_names.h"

#include <filesystem>
#include <system_error>

#include "winnow/error.h"

namespace winnow::cli {

namespace {

namespace fs = std::filesystem;

std::string resolved(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path).lexically_normal();
  const fs::path canonical = fs::weakly_canonical(absolute, error);
  return (error ? absolute : canonical).string();
}

}  // namespace

void FileNames::read(const std::string& path, const std::string& flag) {
  if (!path.empty()) uses_.try_emplace(resolved(path), Use{flag, false});
}

void FileNames::read_if_file(const std::string& value, const std::string& flag) {
  std::error_code none;
  if (fs::is_regular_file(value, none)) read(value, flag);
}

void FileNames::write(const std::string& path, const std::string& flag) {
  if (path.empty()) return;
  const auto [at, fresh] = uses_.try_emplace(resolved(path), Use{flag, true});
  if (fresh) return;
  const Use& other = at->second;
  throw Error(operation_,
              path +
                  (other.written ? ": is written both as " + other.flag + " and as " : ": is read as " + other.flag + " and written as ") +
                  flag + "; choose another name");
}

}  // namespace winnow::cli
