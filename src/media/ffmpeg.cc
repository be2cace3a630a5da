#include "media/ffmpeg.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/env.h"
#include "winnow/error.h"

extern char** environ;

namespace winnow::media {

namespace {

constexpr const char* kOperation = "video";

std::string reason(int error_number) { return std::generic_category().message(error_number); }

// limited-range BT.601 in, as media/y4m.h writes it; limited-range BT.709 out, which is what players expect, and tagged so.
// crf 14 is visually lossless. -f names the container because the file's name ends in ".partial".
std::vector<std::string> arguments(const std::string& path) {
  return {"ffmpeg",
          "-hide_banner",
          "-loglevel",
          "error",
          "-nostdin",
          "-y",
          "-f",
          "yuv4mpegpipe",
          "-i",
          "pipe:0",
          "-vf",
          "scale=in_color_matrix=bt601:out_color_matrix=bt709:flags=accurate_rnd,format=yuv420p",
          "-c:v",
          "libx264",
          "-crf",
          "14",
          "-preset",
          "medium",
          "-color_range",
          "tv",
          "-colorspace",
          "bt709",
          "-color_primaries",
          "bt709",
          "-color_trc",
          "bt709",
          "-movflags",
          "+faststart",
          "-f",
          "mp4",
          "file:" + path};
}

// Spawn attributes and file actions, freed on every way out.
struct SpawnSetup {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;

  SpawnSetup() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
};

pid_t spawn(const std::string& program, const std::vector<std::string>& words, int input, int errors) {
  SpawnSetup setup;
  posix_spawn_file_actions_adddup2(&setup.actions, input, STDIN_FILENO);
  posix_spawn_file_actions_addopen(&setup.actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&setup.actions, errors, STDERR_FILENO);
  // Its own process group: Ctrl-C in a terminal reaches us only, and we decide whether the file is finished or removed.
  posix_spawnattr_setflags(&setup.attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&setup.attributes, 0);
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t child = -1;
  const int error_number = posix_spawn(&child, program.c_str(), &setup.actions, &setup.attributes, argv.data(), environ);
  if (error_number != 0) throw Error(kOperation, program + ": " + reason(error_number));
  return child;
}

void close_and_forget(int& fd) {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

}  // namespace

std::string find_ffmpeg() {
  const std::string folders = env::search_path();
  std::string_view rest = folders;
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(folder.size() + 1, rest.size()));
    if (folder.empty()) continue;  // would mean the current folder
    std::string program = std::string(folder) + "/ffmpeg";
    if (::access(program.c_str(), X_OK) == 0) return program;
  }
  throw Error(kOperation,
              "writing .mp4 needs the program ffmpeg in PATH, and there is none: install the package \"ffmpeg\", or write .y4m");
}

FfmpegMp4::FfmpegMp4(const std::string& path) {
  const std::string program = find_ffmpeg();
  // A socket rather than a pipe: send() can be told not to raise SIGPIPE when the child is gone.
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) throw Error(kOperation, "socketpair: " + reason(errno));
  input_ = ends[0];
  // A memory file rather than a pipe: the child can never block on it, so nobody has to drain it.
  errors_ = ::memfd_create("ffmpeg-errors", MFD_CLOEXEC);
  try {
    if (errors_ < 0) throw Error(kOperation, "memfd_create: " + reason(errno));
    child_ = spawn(program, arguments(path), ends[1], errors_);
  } catch (...) {
    ::close(ends[1]);
    close_and_forget(input_);
    close_and_forget(errors_);
    throw;
  }
  ::close(ends[1]);
}

FfmpegMp4::~FfmpegMp4() {
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    wait();
  }
  close_and_forget(input_);
  close_and_forget(errors_);
}

int FfmpegMp4::wait() {
  int status = 0;
  while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
  }
  child_ = -1;
  return status;
}

std::string FfmpegMp4::last_words() const {
  std::array<char, 2000> text{};
  const off_t size = ::lseek(errors_, 0, SEEK_END);
  const off_t from = std::max<off_t>(0, size - static_cast<off_t>(text.size()));
  const ssize_t n = ::pread(errors_, text.data(), text.size(), from);
  std::string words(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  while (!words.empty() && words.back() == '\n') words.pop_back();
  for (char& c : words) {
    if (c == '\n') c = ';';  // errors are one line
  }
  return words.empty() ? "it gave no reason" : words;
}

void FfmpegMp4::fail(int status) const {
  const std::string how = WIFSIGNALED(status) ? "was ended by signal " + std::to_string(WTERMSIG(status))
                                              : "ended with code " + std::to_string(WEXITSTATUS(status));
  throw Error(kOperation, "ffmpeg " + how + ": " + last_words());
}

void FfmpegMp4::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(input_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      close_and_forget(input_);
      fail(wait());
    }
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void FfmpegMp4::finish() {
  close_and_forget(input_);
  const int status = wait();
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail(status);
}

bool is_complete_mp4(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::array<unsigned char, 16> head{};  // 32-bit size, type, and a 64-bit size if the first one is 1; big endian
  const auto big_endian = [&](int from, int count) {
    std::uint64_t value = 0;
    for (int i = from; i < from + count; ++i) value = value << 8U | head[static_cast<std::size_t>(i)];
    return value;
  };
  std::error_code ignored;
  const std::uint64_t file_size = std::filesystem::file_size(path, ignored);
  if (ignored) return false;
  bool has_index = false;
  bool has_media = false;
  std::uint64_t at = 0;
  while (at < file_size) {
    in.seekg(static_cast<std::streamoff>(at));
    head.fill(0);
    in.read(reinterpret_cast<char*>(head.data()), static_cast<std::streamsize>(std::min<std::uint64_t>(head.size(), file_size - at)));
    const std::uint64_t size = big_endian(0, 4) == 1 ? big_endian(8, 8) : big_endian(0, 4);
    if (!in || size < 8 || size > file_size - at) return false;
    const std::string_view type(reinterpret_cast<const char*>(head.data()) + 4, 4);
    has_index = has_index || type == "moov";
    has_media = has_media || (type == "mdat" && size > 8);
    at += size;
  }
  return has_index && has_media;
}

}  // namespace winnow::media
