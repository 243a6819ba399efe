"""The style of all plots: fonts, colors that color-blind readers can distinguish, and how figures are saved."""

import functools
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainkit.core.errors import ConfigError
from trainkit.core.extras import import_extra
from trainkit.core.signatures import checked

# Okabe and Ito (2008), without the yellow, which is faint on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", ":", "-.")  # with each of which all colors come once
GREY = "#777777"

_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}
# Text stays text in an svg, and the same picture is the same file.
_WRITING: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "trainkit", "pdf.fonttype": 42}


@contextmanager
def blank(n_rows: int = 1, n_columns: int = 1, *, width: float, height: float, **options: Any) -> Iterator[Any]:
    """Yield a new figure of a size in inches and its axes [n_rows, n_columns], in the common style.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    mpl = import_extra("trainkit.plot", "matplotlib", "plot")
    pictures = import_extra("trainkit.plot", "matplotlib.figure", "plot")
    with mpl.rc_context(_STYLE):
        figure: Any = pictures.Figure(figsize=(width, height), layout="constrained")
        # A notebook shows figures only where pyplot was imported; objects with this method always.
        figure._repr_svg_ = functools.partial(_svg, figure)
        yield figure, figure.subplots(n_rows, n_columns, squeeze=False, **options)


@checked
def save(figure: Any, path: str | Path) -> Path:
    """Write a figure in the format that the name ends in: svg, pdf, png (200 dots per inch).

    Raises:
        ConfigError: matplotlib does not write files of this ending.
    """
    mpl = import_extra("trainkit.plot", "matplotlib", "plot")
    path = Path(path)
    known = figure.canvas.get_supported_filetypes()
    ending = path.suffix.removeprefix(".")
    if ending not in known:
        raise ConfigError(f"a picture cannot be written to {path}: end its name in .svg, .pdf or .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"Date": None} if ending == "svg" else {"CreationDate": None} if ending == "pdf" else None
    with mpl.rc_context(_WRITING):
        figure.savefig(path, dpi=200, metadata=about)
    return path


def _svg(figure: Any) -> str:
    """Return a figure as the text of an svg."""
    import matplotlib as mpl

    text = io.StringIO()
    with mpl.rc_context(_WRITING):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def count(number: float, _: object = None) -> str:
    """Format a count of steps: 20k, 1.5M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"
