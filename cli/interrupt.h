// Ctrl-C: the first one asks the running work to stop and clean up, which it does before the next transformer layer or frame.
// The second one ends the program.
#pragma once

namespace winnow::cli {

// Also makes "file too large" an error that can be reported, instead of a signal that kills.
void catch_interrupts();
// SIGINT or SIGTERM if one has arrived, else 0.
int interrupt_signal();

}  // namespace winnow::cli
