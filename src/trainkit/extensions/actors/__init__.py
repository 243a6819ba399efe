"""Several environments in each process, or actor of Ray, which may play by copies of the policy: a backend."""

NAMES = {"envs.Actors": "actors:Actors"}
