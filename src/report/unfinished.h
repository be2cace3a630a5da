// What a calibration has measured so far, in a file beside its output, so that an interrupted one goes on from there.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "winnow/engine.h"

namespace winnow::report {

class Unfinished {
 public:
  // `identity` is everything that decides what is measured. With `resume`, what the file of an interrupted run with the same
  // identity holds is taken over; another run's is not. Throws Error if the file is none of these.
  Unfinished(std::string path, nlohmann::json identity, bool resume);

  // Null if nothing was taken over.
  const nlohmann::json& taken() const { return taken_; }
  // Replaces what the file holds. Throws Error.
  void keep(const nlohmann::json& measured) const;
  // Removes the file.
  void finish() const;
  // Error about this file's contents.
  [[noreturn]] void fail() const;

 private:
  std::string path_;
  nlohmann::json identity_;
  nlohmann::json taken_;
};

// The identity of a calibration: the program, the model's weights, the options and the prompts of its runs.
nlohmann::json calibration_identity(const std::string& model_directory, Precision precision, const GenerateOptions& options,
                                    const std::vector<std::string>& prompts);

}  // namespace winnow::report
