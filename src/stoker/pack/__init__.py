"""Offline re-layout of a data set into shards that load at memory speed.

what = plan.make(sources, plan.Options(shuffle=True))      a pure record: what goes where
execute.run(what, destination)                             does it here; another machine would write the same bytes
"""
