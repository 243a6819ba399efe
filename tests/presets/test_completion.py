"""Completion of options in notebooks: IPython's own, and the signatures that it reads."""

import inspect

import pytest

import trainkit as tk


@pytest.mark.parametrize(
    ("call", "options"),
    [
        (tk.presets.dqn, {"capacity", "lr", "checkpoint", "seed", "env_options"}),
        (tk.presets.cql, {"penalty", "update_per_epoch", "logger"}),
        (tk.OffpolicyTrainer, {"batch_size", "max_env_step", "callbacks"}),
        (tk.on, {"epoch_end", "episode_end"}),
        (tk.OfflineTrainer, {"update_per_epoch", "resume_from"}),
        (tk.SACPolicy.for_envs, {"hidden", "gamma", "target"}),
    ],
)
def test_a_signature_names_every_option(call: object, options: set[str]) -> None:
    parameters = inspect.signature(call).parameters.values()  # type: ignore[arg-type]  # callables
    assert options <= {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert not [one.name for one in parameters if one.kind is one.VAR_KEYWORD]


@pytest.mark.parametrize("jedi", [False, True])
def test_ipython_completes_options(jedi: bool) -> None:
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    from IPython.core.completer import provisionalcompleter

    shell.user_ns["tk"] = tk
    shell.Completer.use_jedi = jedi

    def completed(text: str) -> set[str]:
        with provisionalcompleter():
            return {one.text for one in shell.Completer.completions(text, len(text))}

    every = completed('tk.presets.dqn("CartPole-v1", ')
    assert {"lr=", "capacity=", "checkpoint=", "n_step="} <= every
    assert completed('tk.presets.dqn("CartPole-v1", capac') == {"capacity="}
    assert {"max_epoch=", "max_env_step=", "max_seconds="} <= completed("tk.OffpolicyTrainer(policy, train, max_")
    assert "target=" in completed("tk.DQNPolicy.for_envs(envs, tar")
