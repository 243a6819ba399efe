"""A run as several processes that torchrun started, which learn the same weights together: a process group."""

RUN_PROCESSES = {"WORLD_SIZE": "ranked:launched"}  # the variable that torchrun sets
