"""A trained policy as an ONNX or `torch.export` file, with preprocessing, mask and metadata: a function of a policy."""

NAMES = {"export": "export:export", "policy.export": "export:export"}
