"""What the table of all public calls leaves out of many runs."""

NOT_CALLED = {"run"}  # starts processes: test_many_runs.py calls it
