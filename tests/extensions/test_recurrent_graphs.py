"""Updates and actions of recurrent policies by a CUDA graph, on the pretend device: the loop over steps is inside it.

See `cuda/test_cuda_graph.py`, whose tape stands in for the graph and rejects what a capture of CUDA rejects.
"""

from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.accelerator.runs import make
from tests.extensions.cuda.graph_learners import N_WARM_UPS
from tests.helpers.tape import TapeCapture
from tests.pretend import PretendDevice
from trainkit.policy.learning import Learning

N_UPDATES = N_WARM_UPS + 2


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    ("name", "options", "n_outside"),
    [
        ("r2d2", {"sequences": tk.Sequences(2, 2)}, 0),
        ("drqn", {"sequences": tk.Sequences(2, None, stored_state=False), "recurrent": "gru"}, 0),
        ("recurrent_ppo", {"sequences": tk.Sequences(4, 0)}, 1),  # a copy of the columns of a rollout
        # The target network moves.
        ("sac", {"sequences": tk.Sequences(2, 1), "recurrent": "transformer", "n_envs": 2}, 2),
    ],
    ids=["r2d2", "drqn", "ppo", "sac"],
)
def test_a_recurrent_policy_learns_by_a_graph_as_by_torch(
    name: str, options: dict[str, Any], n_outside: int, taped: PretendDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside: list[int] = []  # operations of updates that are not in the graph
    own_update = Learning.update

    def update_once(learning: Learning, *given: Any, **facts: Any) -> Any:
        with taped.counting() as counts:
            results = own_update(learning, *given, **facts)
        assert counts.waits == 0
        outside.append((counts.operations - TapeCapture.inside).total())
        return results

    weights = {}
    for engine in ("torch", "cuda_graph"):
        how: dict[str, Any] = {"engine": engine, "n_updates": N_UPDATES, "evaluation": None}
        with make(name, taped.device, **how | options) as trainer:
            if engine == "cuda_graph":
                monkeypatch.setattr(Learning, "update", update_once)
            trainer.run()
            assert trainer.policy.engine.name == engine
            weights[engine] = trainer.policy.get_weights()
    assert TapeCapture.n_recorded == 2, "updates and actions"
    assert outside[-1] == n_outside
    for path, weight in weights["torch"].items():
        np.testing.assert_allclose(weights["cuda_graph"][path], weight, rtol=1e-5, atol=1e-5, err_msg=path)
