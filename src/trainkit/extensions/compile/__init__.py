"""Losses and their gradients by `torch.compile`: an engine for larger networks."""

ENGINES = {"compile": "compile_engine:CompileEngine"}
