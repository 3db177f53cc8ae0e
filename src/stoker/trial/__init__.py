"""One candidate → one child process tree, guarded so that it can never hurt the machine. Chooses nothing."""
