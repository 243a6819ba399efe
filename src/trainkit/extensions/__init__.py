"""Extensions: what a run may add to what every run needs, a folder for each capability.

An extension imports the kernel; neither the kernel nor another extension imports it: `core/extensions.py` finds it by
the constants in its `__init__`. Deleting its folder breaks its own tests and nothing else.
"""
