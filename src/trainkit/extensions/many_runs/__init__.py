"""Many runs at the same time, each in a process or task of Ray of its own: `tk.run`, and `--jobs` of the command."""

NAMES = {"run": "many_runs:run", "trainer.run": "many_runs:run"}
RUNS = {"jobs": "many_runs:run_all"}
