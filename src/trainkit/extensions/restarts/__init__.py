"""Restarts of environments that failed, `make_envs(on_error="restart")`: a backend around another."""

ON_ERROR = {"restart": "restarts:Restarts"}
