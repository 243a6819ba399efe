"""Faults that the mirror of a buffer's images could have, each with the check that must notice it."""

from functools import partial

import pytest

from tests.extensions.cuda import test_frame_mirror
from tests.helpers.faults import Fault, assert_noticed, rewritten
from trainkit.extensions.cuda import frame_mirror

MUTANTS = {
    "images of a dropped episode in the mirror": Fault(
        plant=rewritten(frame_mirror, "$sent.n_dropped - $now.n_dropped", "0 * $now.n_dropped"),
        check=test_frame_mirror.test_an_episode_dropped_and_another_begun_in_its_place,
    ),
    "a cut that the mirror of images ignores": Fault(
        plant=rewritten(
            frame_mirror,
            "($now.serial, $now.n_episodes) == ($sent.serial, $sent.n_episodes)",
            "$now.serial == $sent.serial",
        ),
        check=test_frame_mirror.test_an_episode_cut_where_it_was_at_the_last_draw_has_its_final_image,
    ),
    "images of the lap before in the mirror": Fault(
        plant=rewritten(frame_mirror, "$now.serial - $sent.serial >= $lap", "False"),
        check=partial(
            test_frame_mirror.test_rings_that_wrap_again_and_again_between_draws_of_every_distance,
            form="pixels",
            stack=1,
        ),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(MUTANTS[name], monkeypatch)
