"""Reports of a run to Ray Tune: a callback."""

NAMES = {"callbacks.TuneReport": "tune_report:TuneReport"}
