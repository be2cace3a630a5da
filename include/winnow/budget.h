// Budgets from the kernel's own normaliser: 1/l of a row is its largest softmax weight. Peaked heads keep few key tiles, diffuse heads
// keep many, without a table made offline.
#pragma once

#include <string>

namespace winnow {

// The share of key tiles that each head keeps, from the mean of ln l over its rows in the last call of the same layer, expert and
// guidance branch that computed or represented every key (dense, or with means for skipped tiles). Without such a call, or with
// another number of keys, the method's own budget stands.
struct SignalBudget {
  // "free": keep = Phi(Phi^-1(mass) - sqrt(between) * sigma), sigma = max(0, sqrt(2 ln N) - sqrt(2 mean ln l)): the share of N keys
  // with normally distributed logits that holds `mass`, if tiles explain `between` of their variance.
  // Else the path of a file made by `winnow calibrate budget`.
  std::string map = "free";
  float mass = 0.95F;      // of "free", in (0,1)
  float between = 0.6F;    // of "free", in [0,1]
  float min_keep = 0.02F;  // each head's share is clamped to [min_keep, max_keep]
  float max_keep = 1.0F;
  // In [min_keep, max_keep]: the shares of a layer's heads are moved alike until this is their mean: the signal distributes a given
  // budget. 0: they are not.
  float mean_keep = 0.0F;
  void validate() const;  // throws Error naming the key
  bool operator==(const SignalBudget&) const = default;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("map", self.map);
    visit("mass", self.mass);
    visit("between", self.between);
    visit("min_keep", self.min_keep);
    visit("max_keep", self.max_keep);
    visit("mean_keep", self.mean_keep);
  }
};

}  // namespace winnow
