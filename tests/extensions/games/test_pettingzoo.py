"""PettingZoo's own games, where they are installed."""

import pytest

from benchmarks.pettingzoo_games import GAMES, factories, play_at_random
from trainkit.envs import check_env


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of the games and of what they import
@pytest.mark.parametrize("game", GAMES)
def test_every_installed_game_is_played_for_ten_thousand_moves(game: str) -> None:
    try:
        found = factories(game)
    except ImportError as error:
        pytest.skip(f"{game} is not installed: {error}")
    for make in found.values():
        assert play_at_random(make, 10_000)["moves"] >= 10_000
        assert not [finding for finding in check_env(make, n_steps=100) if finding.level == "error"]
