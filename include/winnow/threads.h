// How many CPU threads Winnow uses.
#pragma once

namespace winnow {

// Threads for attention, planning and linear layers in this process. n = 0 means one per core.
// Results do not depend on it: the same inputs give the same bits on any number of threads.
// Throws Error if n < 0. Not to be called while another thread is inside Winnow.
void set_num_threads(int n);
int num_threads();

}  // namespace winnow
