"""Training on more cores, machines and devices than one process uses."""
