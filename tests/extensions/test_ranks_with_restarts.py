"""Ranks with environments that are restarted."""

import pytest

import trainkit as tk
from tests.extensions.ranks import test_ranked

single_rank = test_ranked.single_rank  # the fixture


@pytest.mark.usefixtures("single_rank")
def test_environments_whose_rows_may_be_dropped_are_rejected() -> None:
    with pytest.raises(tk.ConfigError, match="every step must give a row of each environment"):
        test_ranked.make_run(env_options={"on_error": "restart"})
