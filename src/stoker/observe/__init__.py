"""A live run becomes records. Attaches to an unmodified script, restores all it touched, judges nothing.

`launch` starts the user's command with `attach/` on its path; the child's interpreter then loads `child`, which
instruments torch when the script imports it. Every process appends what it sees to its own files in the run's
directory; `readback` makes an `Observation` of whatever is there.
"""
