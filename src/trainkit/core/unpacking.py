"""Whether a caller discards the second of two values that it unpacks, as in `action, _ = policy.predict(obs)`."""

import dis
import functools
import sys
from types import CodeType, FrameType


def discards_second(skipped: str) -> bool:
    """Return whether the code that called the caller of this unpacks two values, the second to a name like `_`.

    Args:
        skipped: the start of module names whose frames stand between: of wrappers.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(skipped):
        frame = frame.f_back
    return frame is not None and _discards_second(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=1_024)
def _discards_second(code: CodeType, called_at: int) -> bool:
    """Return whether a call in some code is followed by an unpacking of two values, the second to a name like `_`."""
    following = [one for one in dis.get_instructions(code) if one.offset > called_at and one.opname != "CACHE"][:3]
    if len(following) < 2 or following[0].opname != "UNPACK_SEQUENCE" or following[0].argval != 2:
        return False
    names: list[str] = []
    for one in following[1:]:
        if one.opname.startswith("STORE_"):  # Python 3.13 stores two at once
            names += one.argval if isinstance(one.argval, tuple) else [str(one.argval)]
    return len(names) > 1 and names[1].startswith("_")
