"""What a benchmark has run is not run again, unless what it depends on changed."""

from pathlib import Path

from benchmarks.pages import Cache


def test_a_finished_run_is_there_again_for_the_next_process(tmp_path: Path) -> None:
    file = tmp_path / "results" / "runs.jsonl"
    Cache(file).put({"returns": [1.0, 2.5]}, "ppo", 1, {"lr": 3e-4, "hidden": (64, 64)})
    assert Cache(file).get("ppo", 1, {"lr": 3e-4, "hidden": (64, 64)}) == {"returns": [1.0, 2.5]}


def test_a_run_with_other_settings_is_not_there(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "runs.jsonl")
    cache.put({"returns": []}, "ppo", 1, {"lr": 3e-4})
    assert cache.get("ppo", 1, {"lr": 3e-4}) == {"returns": []}
    assert cache.get("ppo", 1, {"lr": 1e-3}) is None
    assert cache.get("ppo", 2, {"lr": 3e-4}) is None


def test_what_is_kept_last_counts(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    for score in (1, 2):
        Cache(file).put({"score": score}, "sac")
    assert Cache(file).get("sac") == {"score": 2}
    assert len(file.read_text().splitlines()) == 2
