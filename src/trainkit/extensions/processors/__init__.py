"""Transformations of observations and actions between environments and policy: a backend around another."""

_NAMES = "AgentId DiscretizeActions Flatten MapActions MapObs PreviousStep Processor TimeFeature"

NAMES = {f"envs.{name}": f"processors:{name}" for name in _NAMES.split()}
