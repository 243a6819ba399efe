"""What tests of all public names leave out of many runs."""

NOT_CALLED = {"run"}  # starts processes: test_many_runs.py calls it
