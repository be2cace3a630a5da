#include "core/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "winnow/error.h"

namespace winnow {

namespace fs = std::filesystem;

PartialFile::PartialFile(std::string operation, const std::string& path) : operation_(std::move(operation)), path_(path), target_(path) {
  if (path.empty()) throw Error(operation_, "expected a file name, got an empty one");
  std::error_code ignored;
  if (fs::is_symlink(path, ignored) && fs::exists(path, ignored)) target_ = fs::canonical(path, ignored).string();
  const fs::file_status status = fs::status(target_, ignored);
  if (fs::is_directory(status)) throw Error(operation_, path + ": expected a file name, got a folder");
  const fs::path folder = fs::path(target_).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, ignored)) {
    throw Error(operation_, path + ": the folder " + folder.string() + " does not exist");
  }
  const bool is_device = fs::exists(status) && !fs::is_regular_file(status);
  if (is_device) {
    partial_ = target_;
    fd_ = ::open(partial_.c_str(), O_WRONLY | O_CLOEXEC);
  } else {
    create();
  }
  if (fd_ < 0) fail(errno);
}

// The process id alone would not do: a run that was killed may have left its file, and a process may write one name twice.
// O_EXCL also refuses a link planted at the name.
void PartialFile::create() {
  constexpr int kAttempts = 1000;
  for (int n = 0; n < kAttempts; ++n) {
    partial_ = target_ + "." + std::to_string(::getpid()) + "-" + std::to_string(n) + ".partial";
    fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0 || errno != EEXIST) return;
  }
}

PartialFile::~PartialFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (partial_ != target_) ::unlink(partial_.c_str());
}

void PartialFile::fail(int error_number) const { throw Error(operation_, path_ + ": " + std::generic_category().message(error_number)); }

void PartialFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      fail(errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void PartialFile::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void PartialFile::commit() {
  const int fd = std::exchange(fd_, -1);
  // Some file systems report a full disk only here.
  const bool closed = ::close(fd) == 0;
  if (partial_ == target_) {
    if (!closed) fail(errno);
    return;
  }
  if (!closed || std::rename(partial_.c_str(), target_.c_str()) != 0) {
    const int error_number = errno;
    ::unlink(partial_.c_str());
    fail(error_number);
  }
}

void check_writable(const std::string& operation, const std::string& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  // Opening a pipe would wait for its reader.
  if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status)) return;
  const PartialFile probe(operation, path);
}

void write_text_file(const std::string& operation, const std::string& path, std::string_view text) {
  PartialFile file(operation, path);
  file.write(text);
  file.commit();
}

}  // namespace winnow
