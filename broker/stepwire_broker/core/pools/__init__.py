"""Tables about pools: how many members the load needs, how full a broker is, and which members are well.

A pool is a number of equal things that share one load: the members of a stage, or the copies of a worker.
"""
