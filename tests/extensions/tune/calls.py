"""What the table of all public calls leaves out of tune."""

NOT_CALLED = {"TuneReport"}  # needs an extra
