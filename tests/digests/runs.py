"""The runs: one for each algorithm, and for each way to act, store and learn.

A run's name is its contract with later commits: what it does stays as it is, whatever the names of the options become.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

import trainkit as tk
from tests.digests.outcome import Run, World
from tests.digests.worlds import Chase, ClippedReward, Drift, ObsForm, Squares, TapedPendulum

CHOICE = spaces.Discrete(3)
CHOICES = spaces.MultiDiscrete([3, 2])
FORCE = spaces.Box(-1.0, 1.0, (2,), np.float32)
NESTED_CHOICES = spaces.Dict({"steer": spaces.Discrete(3), "gears": spaces.Tuple((spaces.Discrete(2), CHOICE))})
NESTED_FORCES = spaces.Tuple((spaces.Box(-1.0, 1.0, (1,)), spaces.Dict({"lift": spaces.Box(-0.5, 1.0, (1,))})))
HYBRID = spaces.Dict({"gear": CHOICE, "thrust": spaces.Box(-1.0, 1.0, (1,))})
N_ROWS = 400  # of a dataset

Make = Callable[[World], Any]
Options = Mapping[str, Any]

REPLAYED: Options = {"step_per_epoch": 100, "batch_size": 32, "update_per_step": 1.0, "learning_starts": 20}
SEQUENCES: Options = {"batch_size": 8, "update_per_step": 0.5}  # 8 sequences are some 40 rows
ROLLED_OUT: Options = {"step_per_epoch": 320, "step_per_collect": 64, "batch_size": 16, "repeat_per_collect": 4}


# ---- parts of a run ----


def drifts(world: World, space: Any, form: ObsForm = "vector", **options: Any) -> tk.Envs:
    """Make two environments; their observations and actions are recorded."""
    return tk.make_envs([partial(Drift, space, world.tape(), form) for _ in range(2)], **options)


def games(world: World, kind: Any, **options: Any) -> tk.Envs:
    """Make two games; their observations and actions are recorded."""
    return tk.make_envs([partial(kind, world.tape()) for _ in range(2)], **options)


def learner(world: World, kind: Any, envs: Any, **options: Any) -> Any:
    """Make a policy that computes by the run's engine on the CPU, of copies of the parts that are given."""
    usual = {"hidden": (32, 32), "device": "cpu", "engine": world.engine}
    return kind.for_envs(envs, **usual | deepcopy(options))


def tested(policy: Any, envs: tk.Envs) -> dict[str, Any]:
    """Let the greedy policy play 3 episodes at each epoch's end."""
    return {"test_collector": tk.Collector(policy, envs), "episode_per_test": 3}


def uniform() -> Any:
    """Make a replay buffer."""
    return tk.ReplayBuffer(200)


def prioritized() -> Any:
    """Make a replay buffer with priorities."""
    return tk.PrioritizedReplayBuffer(200, beta=[(0, 0.4), (300, 1.0)])


def dataset(space: Any = CHOICE, *, masks: bool = False, kind: Any = tk.ReplayBuffer, seed: int = 0) -> Any:
    """Return a buffer of rows that are the same for every seed of a run."""
    rng = np.random.default_rng(seed)
    ends = np.arange(N_ROWS) % 10 == 9
    vectors = rng.normal(size=(N_ROWS, 4)).astype(np.float32)
    action = rng.integers(3, size=N_ROWS) if space is CHOICE else rng.uniform(-1, 1, (N_ROWS, 2)).astype(np.float32)
    columns: dict[str, Any] = {"obs": vectors, "action": action, "reward": rng.normal(size=N_ROWS), "terminated": ends}
    if masks:
        columns["obs"] = {"obs": vectors, "action_mask": np.ones((N_ROWS, 3), np.int8)}
    return kind.from_arrays(**columns)


def mixed(first: Any) -> Any:
    """Let half of each batch come from a dataset, and half from another buffer."""
    return tk.MixedBuffer({first: 0.5, dataset(): 0.5})


# ---- trainers in environments of one agent ----


def offpolicy(
    kind: Any,
    *,
    space: Any = CHOICE,
    form: ObsForm = "vector",
    buffer: Callable[[], Any] = uniform,
    rows: Options | None = None,
    envs: Options | None = None,
    trainer: Options | None = None,
    **options: Any,
) -> Make:
    """Learn from replayed rows, 270 times.

    Args:
        rows: options of environments that change their rows, in training and evaluation.
        envs: those of training environments alone.
    """

    def make(world: World) -> Any:
        own_envs = drifts(world, space, form, **(rows or {}), **(envs or {}))
        policy = learner(world, kind, own_envs, **options)
        test = tested(policy, drifts(world, space, form, **(rows or {})))
        collector = tk.Collector(policy, own_envs, buffer())
        return tk.OffpolicyTrainer(policy, collector, **{**REPLAYED, **(trainer or {}), **world.options(), **test})

    return make


def q_learner(**options: Any) -> Make:
    """Learn action values, exploring by epsilon."""
    usual: dict[str, Any] = {"exploration": tk.EpsilonGreedy([(0, 1.0), (200, 0.1)]), "target": tk.Target(50)}
    return offpolicy(tk.DQNPolicy, **usual | options)


def rainbow() -> Make:
    """Learn by all of DQN's improvements at once, where some actions are illegal."""
    return q_learner(
        form="masked",
        buffer=prioritized,
        value=tk.CategoricalValue(21, -10.0, 10.0),
        exploration=tk.Greedy(),
        double=True,
        dueling=True,
        noisy=True,
        n_step=3,
        head=(16,),
    )


def r2d2(memory: str = "lstm") -> Make:
    """Learn action values from prioritized sequences, with burn-in from stored states."""
    return q_learner(
        buffer=prioritized,
        recurrent=memory,
        sequences=tk.Sequences(length=6, burn_in=3),
        value=tk.ExpectedValue("mse", rescale=1e-3),
        double=True,
        dueling=True,
        n_step=3,
        trainer=SEQUENCES,
    )


def onpolicy(
    kind: Any,
    *,
    space: Any = CHOICE,
    form: ObsForm = "vector",
    episodes: int | None = None,
    rows: Options | None = None,
    envs: Options | None = None,
    **options: Any,
) -> Make:
    """Learn from rollouts, 240 times."""

    def make(world: World) -> Any:
        own_envs = drifts(world, space, form, **(rows or {}), **(envs or {}))
        policy = learner(world, kind, own_envs, **options)
        test = tested(policy, drifts(world, space, form, **(rows or {})))
        length = {} if episodes is None else {"step_per_collect": None, "episode_per_collect": episodes}
        collector = tk.Collector(policy, own_envs, tk.RolloutBuffer())
        return tk.OnpolicyTrainer(policy, collector, **{**ROLLED_OUT, **length, **world.options(), **test})

    return make


def simulated(kind: Any, **options: Any) -> Make:
    """Learn from rollouts of tensors."""

    def make(world: World) -> Any:
        simulator = TapedPendulum(8, world.tape())
        policy = learner(world, kind, simulator, **options)
        test = tested(policy, tk.make_envs(tk.simulators.SimulatorVectorEnv(TapedPendulum(2, world.tape()))))
        collector = tk.simulators.TensorCollector(policy, simulator)
        return tk.OnpolicyTrainer(policy, collector, **{**ROLLED_OUT, **world.options(), **test})

    return make


def offline(
    kind: Any,
    *,
    space: Any = CHOICE,
    form: ObsForm = "vector",
    buffer: Callable[[], Any] | None = None,
    batch_size: int = 32,
    **options: Any,
) -> Make:
    """Learn from a dataset, 300 times."""

    def make(world: World) -> Any:
        policy = learner(world, kind, drifts(world, space, form), **options)
        rows = dataset(space, masks=form == "masked") if buffer is None else buffer()
        test = tested(policy, drifts(world, space, form))
        own = {"update_per_epoch": 100, "batch_size": batch_size, **world.options(), **test}
        return tk.OfflineTrainer(policy, rows, **own)

    return make


# ---- trainers in games ----


def shared_policy(
    kind: Any, buffer: Callable[[], Any], trainer: Any, own: Options, rows: Options | None = None, **options: Any
) -> Make:
    """Let the agents of a game share one policy."""

    def make(world: World) -> Any:
        envs = games(world, Chase, **(rows or {}))
        policy = learner(world, kind, envs, **options)
        test = tested(policy, games(world, Chase, **(rows or {})))
        return trainer(policy, tk.Collector(policy, envs, buffer()), **{**own, **world.options(), **test})

    return make


def two_q_learners(world: World) -> Any:
    """Let two Q-learners of other parts play each other, and change sides from game to game."""
    envs = games(world, Chase)
    first = learner(world, tk.DQNPolicy, envs, double=True, exploration=tk.EpsilonGreedy(0.3))
    second = learner(world, tk.DQNPolicy, envs, value=tk.QuantileValue(8), n_step=2)
    players = tk.MultiAgentPolicy({"first": first, "second": second}, policy_mapping=other_sides)
    buffer = tk.MultiAgentBuffer({"first": prioritized(), "second": uniform()})
    own = {**REPLAYED, **world.options(), **tested(players, games(world, Chase))}
    return tk.OffpolicyTrainer(players, tk.Collector(players, envs, buffer), **own)


def other_sides(agent: str, episode: Any) -> str:
    """Return which policy plays an agent in a game."""
    sides = episode.rng.permutation(["first", "second"])
    return str(sides[0] if agent == "fox" else sides[1])


def two_actor_critics(world: World) -> Any:
    """Let PPO chase a memory that learns by A2C."""
    envs = games(world, Chase)
    ppo = learner(world, tk.PPOPolicy, envs)
    a2c = learner(world, tk.A2CPolicy, envs, recurrent="gru", sequences=tk.Sequences(length=8, burn_in=0))
    players = tk.MultiAgentPolicy({"fox": ppo, "hare": a2c})
    buffer = tk.MultiAgentBuffer({"fox": tk.RolloutBuffer(), "hare": tk.RolloutBuffer()})
    own = {**ROLLED_OUT, **world.options(), **tested(players, games(world, Chase))}
    return tk.OnpolicyTrainer(players, tk.Collector(players, envs, buffer), **own)


def self_play(kind: Any, **pool: Any) -> Make:
    """Let a Q-learner play frozen copies of itself."""

    def make(world: World) -> Any:
        envs = games(world, kind)
        opponents = tk.callbacks.OpponentPool("main", size=2, **pool)
        main = learner(world, tk.DQNPolicy, envs, exploration=tk.EpsilonGreedy(0.3), target=tk.Target(50))
        players = tk.MultiAgentPolicy({"main": main}, policy_mapping=opponents)
        collector = tk.Collector(players, envs, tk.MultiAgentBuffer({"main": uniform()}))
        own = {**REPLAYED, **world.options(opponents), **tested(players, games(world, kind))}
        return tk.OffpolicyTrainer(players, collector, **own)

    return make


def self_play_on_policy(world: World) -> Any:
    """Let PPO play the copies of itself that it loses to most."""
    envs = games(world, Chase)
    opponents = tk.callbacks.OpponentPool("main", size=2, add_every=150, draw="hard")
    players = tk.MultiAgentPolicy({"main": learner(world, tk.PPOPolicy, envs)}, policy_mapping=opponents)
    collector = tk.Collector(players, envs, tk.MultiAgentBuffer({"main": tk.RolloutBuffer()}))
    own = {**ROLLED_OUT, **world.options(opponents), **tested(players, games(world, Chase))}
    return tk.OnpolicyTrainer(players, collector, **own)


# ---- all runs ----


def implicit() -> Any:
    """Return the value part of IQN, with few fractions."""
    return tk.ImplicitQuantileValue(8, target_quantiles=8, acting_quantiles=8)


def squared_features(features: Any, rows: Any) -> Any:
    """Return an auxiliary loss [B]."""
    return 0.01 * features.square().mean(1)


C51 = tk.CategoricalValue(21, -10.0, 10.0)
SHORT = tk.Sequences(length=6, burn_in=3)
ROLLED = tk.Sequences(length=8, burn_in=0)
WITHOUT_STATES = tk.Sequences(length=6, burn_in=3, stored_state=False)
PROCESSED: Options = {"processors": [ClippedReward(), tk.envs.PreviousStep(), tk.envs.TimeFeature(11)]}
ROUNDS: Options = {"refresh_priorities": "round", "updates_per_round": 16}
OVERLAP: Options = {"overlap": True, "step_per_collect": 8}
ROLLOUT = tk.RolloutBuffer


def lockstep() -> Any:
    """Make a buffer that draws the rows of both agents of a moment together."""
    return tk.buffer.LockstepReplayBuffer(200, n_agents=2)


OFFPOLICY: dict[str, Make] = {
    "dqn": q_learner(lr=[(0, 1e-3), (300, 1e-4)]),
    "dqn-masks": q_learner(form="masked", double=True),
    "dqn-multi-discrete": q_learner(space=CHOICES),
    "double-dueling-normalized": q_learner(double=True, dueling=True, normalize_obs=True),
    "prioritized-3-step": q_learner(buffer=prioritized, double=True, n_step=3),
    "c51": q_learner(value=C51),
    "qr-dqn": q_learner(value=tk.QuantileValue(16), target=tk.Target(1, "updates", 0.05)),
    "iqn": q_learner(value=implicit()),
    "munchausen": q_learner(backup=tk.MunchausenBackup()),
    "rainbow": rainbow(),
    "sac-learned-temperature": offpolicy(
        tk.SACPolicy, space=FORCE, buffer=prioritized, normalize_obs=True, trainer={"warmup": "random"}
    ),
    "sac-fixed-temperature": offpolicy(tk.SACPolicy, space=FORCE, temperature=0.2),
    # other parts
    "dqn-soft-q-hl-gauss": q_learner(exploration=tk.SoftQ(0.5), value=tk.HLGaussValue(21, -10.0, 10.0)),
    "dqn-ez-greedy-range-of-n": q_learner(exploration=tk.EZGreedy(0.3), n_step=(1, 3)),
    "dqn-parameter-noise": q_learner(exploration=tk.ParameterNoise(0.3)),
    "dqn-auxiliary-clipped": q_learner(auxiliary=squared_features, max_grad_norm=0.5),
    "sac-colored-noise": offpolicy(tk.SACPolicy, space=FORCE, exploration=tk.ColoredNoise(1.0, length=20), n_step=2),
    # ways to store, replay and step
    "dqn-rounds": q_learner(trainer=ROUNDS),
    "prioritized-rounds": q_learner(buffer=prioritized, trainer=ROUNDS),
    "prioritized-late": q_learner(buffer=prioritized, trainer={"refresh_priorities": "late"}),
    "dqn-overlap": q_learner(trainer=OVERLAP),
    "dqn-episodes": q_learner(trainer={"episode_per_collect": 2, "update_per_step": None, "training_intensity": 16}),
    "dqn-async-overlap": q_learner(envs={"backend": "async"}, trainer=OVERLAP),
    "dqn-actors": q_learner(envs={"backend": tk.envs.Actors(2)}),
    "dqn-mixed": q_learner(buffer=lambda: mixed(prioritized())),
    # structured spaces and processors
    "dqn-nested-choices": q_learner(space=NESTED_CHOICES, form="dict"),
    "dqn-grid": q_learner(form="grid", encoder=tk.nets.MinAtarCNN),
    "dqn-stack": q_learner(rows={"stack": 3}),
    "dqn-processors": q_learner(rows=PROCESSED),
    "dqn-discretized": q_learner(space=FORCE, rows={"processors": [tk.envs.DiscretizeActions(2)]}),
    "sac-nested-forces": offpolicy(tk.SACPolicy, space=NESTED_FORCES),
    # memory
    "drqn-lstm": q_learner(recurrent="lstm", sequences=SHORT, trainer=SEQUENCES),
    "drqn-gru-whole-episodes": q_learner(
        recurrent="gru", sequences=tk.Sequences(length=11, burn_in=None), form="masked", value=C51, trainer=SEQUENCES
    ),
    "drqn-transformer": q_learner(recurrent="transformer", sequences=SHORT, trainer=SEQUENCES),
    "r2d2": r2d2(),
    "sac-lstm": offpolicy(tk.SACPolicy, space=FORCE, recurrent="lstm", sequences=SHORT, trainer=SEQUENCES),
    "vdn": shared_policy(tk.DQNPolicy, lockstep, tk.OffpolicyTrainer, REPLAYED, backup=tk.VDNBackup()),
}
ONPOLICY: dict[str, Make] = {
    "ppo-discrete-masks": onpolicy(tk.PPOPolicy, form="masked", clip_value=0.2),
    "ppo-multi-discrete": onpolicy(tk.PPOPolicy, space=CHOICES),
    "ppo-box-normalized": onpolicy(tk.PPOPolicy, space=FORCE, normalize_obs=True),
    "ppo-squashed": onpolicy(tk.PPOPolicy, space=FORCE, distribution=tk.nets.SquashedGaussian(FORCE)),
    "a2c": onpolicy(tk.A2CPolicy),
    "reinforce": onpolicy(tk.ReinforcePolicy, episodes=6),
    "ppo-hybrid-target-kl": onpolicy(tk.PPOPolicy, space=HYBRID, form="dict", target_kl=0.02),
    "ppo-critic-only": onpolicy(tk.PPOPolicy, form="dict", critic_only=["noise"]),
    "ppo-async": onpolicy(tk.PPOPolicy, envs={"backend": "async"}),
    "ppo-fragments": onpolicy(tk.PPOPolicy, envs={"backend": tk.envs.Actors(2, fragment=4)}),
    "ppo-processors": onpolicy(tk.PPOPolicy, rows=PROCESSED),
    "ppo-lstm": onpolicy(tk.PPOPolicy, form="masked", recurrent="lstm", sequences=ROLLED),
    "ppo-gru-shared-box": onpolicy(
        tk.PPOPolicy, space=FORCE, normalize_obs=True, recurrent="gru", shared=True, sequences=ROLLED
    ),
    "reinforce-lstm": onpolicy(tk.ReinforcePolicy, episodes=6, recurrent="lstm", sequences=ROLLED),
    "ppo-simulator": simulated(tk.PPOPolicy, normalize_obs=True),
    "a2c-simulator": simulated(tk.A2CPolicy),
    "mappo": shared_policy(
        tk.PPOPolicy,
        ROLLOUT,
        tk.OnpolicyTrainer,
        ROLLED_OUT,
        {"wrappers": [tk.envs.ObserveState], "processors": [tk.envs.AgentId()]},
        critic_only=["state"],
    ),
}
OFFLINE: dict[str, Make] = {
    "bcq": offline(tk.DiscreteBCQPolicy, form="masked", normalize_obs=True),
    "cql": offline(tk.DQNPolicy, double=True, penalty=tk.ConservativePenalty(0.5)),
    "bc-discrete": offline(tk.BCPolicy),
    "bc-box": offline(tk.BCPolicy, space=FORCE),
    "cql-lstm": offline(
        tk.DQNPolicy,
        penalty=tk.ConservativePenalty(0.5),
        recurrent="lstm",
        sequences=WITHOUT_STATES,
        batch_size=8,
    ),
    "bc-transformer": offline(tk.BCPolicy, recurrent="transformer", sequences=WITHOUT_STATES, batch_size=8),
    "cql-mixed-prioritized": offline(
        tk.DQNPolicy,
        penalty=tk.ConservativePenalty(0.5),
        buffer=lambda: mixed(dataset(kind=tk.PrioritizedReplayBuffer, seed=1)),
    ),
    "sac-offline": offline(tk.SACPolicy, space=FORCE),
}
SEVERAL_POLICIES: dict[str, Make] = {
    "two-q-learners": two_q_learners,
    "self-play": self_play(Chase, add_every=40),
    "self-play-latest": self_play(Chase, add_every=40, draw="latest"),
    "self-play-turns": self_play(Squares, add_at_win_rate=0.4),
    "two-actor-critics": two_actor_critics,
    "ppo-self-play": self_play_on_policy,
}
BY_NUMPY = (
    *("dqn", "prioritized-3-step", "c51", "qr-dqn", "iqn", "munchausen", "rainbow", "dqn-rounds", "dqn-grid"),
    *("sac-learned-temperature", "drqn-lstm", "r2d2", "sac-lstm", "vdn", "two-q-learners"),
    *("ppo-discrete-masks", "ppo-box-normalized", "a2c", "ppo-lstm", "ppo-hybrid-target-kl"),
    *("bcq", "cql", "bc-box", "cql-lstm"),
)

# ---- where a run is saved to be resumed: at an update in the second epoch, or where it cannot be, after a collect ----

HALF_AS_MANY_UPDATES = (
    *("dqn-episodes", "drqn-lstm", "drqn-gru-whole-episodes", "drqn-transformer", "r2d2", "sac-lstm"),
    *("self-play-latest", "self-play-turns"),
)
OVERLAPPING = "dqn-overlap", "dqn-async-overlap"
FROM_ROLLOUTS = *ONPOLICY, "two-actor-critics", "ppo-self-play"

MAKE = OFFPOLICY | ONPOLICY | OFFLINE | SEVERAL_POLICIES
RUNS: dict[str, Run] = {name: Run(make=make, leave=("update", 137)) for name, make in MAKE.items()}
RUNS |= {name: Run(make=MAKE[name], leave=("update", 60)) for name in HALF_AS_MANY_UPDATES}
RUNS |= {name: Run(make=MAKE[name], leave=("collect", 19)) for name in OVERLAPPING}
RUNS |= {name: Run(make=MAKE[name], leave=("collect", 8)) for name in FROM_ROLLOUTS}
RUNS |= {f"numpy-{name}": replace(RUNS[name], engine="numpy") for name in BY_NUMPY}
