// A file that appears under its name only once it is complete: nothing half-written survives an error or a cancelled run.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace winnow {

class PartialFile {
 public:
  // Opens a new file beside `path` for writing: NAME.PID-N.partial, so that two runs with one output never share it. A device or pipe is
  // opened itself, since there is nothing to rename. `operation` appears in errors: "[video] out/a.y4m: No space left on device". Throws
  // Error, also for a folder.
  PartialFile(std::string operation, const std::string& path);
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  // Removes the partial file unless commit() succeeded.
  ~PartialFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Gives the file its name. Throws Error.
  void commit();

  // Where the bytes go until commit(); another program may write there too.
  const std::string& partial_path() const { return partial_; }

 private:
  void create();
  [[noreturn]] void fail(int error_number) const;

  std::string operation_;
  std::string path_;     // as given, for messages
  std::string target_;   // what is renamed to: the file behind a symbolic link, so that the link stays
  std::string partial_;  // equal to target_ for a device
  int fd_ = -1;
};

// Throws the Error that writing `path` would throw now (missing folder, no permission, a folder), leaving nothing behind.
void check_writable(const std::string& operation, const std::string& path);
void write_text_file(const std::string& operation, const std::string& path, std::string_view text);

}  // namespace winnow
