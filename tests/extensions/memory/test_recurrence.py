"""Recurrent policies: gradients against a plain loop over the same sequences, states from step to step, wrong uses."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import trainkit as tk
from tests.extensions.memory.plain_loops import (
    SEQUENCES,
    Counting,
    Known,
    Pushing,
    assert_gradients,
    collected,
    learned_rows,
    recalled,
)
from tests.helpers.engine import engines, precisions
from trainkit.buffer import SequenceBatch, sample_sequences
from trainkit.nets import Memory


class Leaky(Memory):
    """A memory of a user: a decaying sum."""

    def __init__(self, n_inputs: int) -> None:
        super().__init__(4, 4)
        self.inputs = nn.Linear(n_inputs, 4)
        nn.init.constant_(self.inputs.weight, 0.1)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = 0.8 * state + torch.tanh(self.inputs(x))
        return state, state


def sampled(policy: tk.DQNPolicy, buffer: tk.ReplayBuffer) -> SequenceBatch:
    assert policy.sequences is not None
    length, burn_in = policy.sequences.length, policy.sequences.burn_in
    return sample_sequences(buffer, 5, length=length, burn_in=burn_in, horizon=policy.horizon)


class Loop:
    """A plain loop, step by step and sequence by sequence, over a batch."""

    def __init__(self, policy: tk.DQNPolicy, batch: SequenceBatch) -> None:
        self.policy, self.batch = policy, batch

    def values(self, network: Any, column: int) -> dict[int, Tensor]:
        """Return the action values [A] at each position from the burn-in's end on."""
        batch, memory = self.batch, network.encoder.memory
        observations: Any = batch.observations
        cell: Any = memory.step
        if isinstance(memory, tk.nets.LSTM):
            with torch.random.fork_rng():
                of_torch = nn.LSTMCell(memory.input_weight.shape[1], memory.n_features)
            for name, own in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), memory.parameters(), strict=True):
                delattr(of_torch, name)
                setattr(of_torch, name, own)

            def cell(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
                h, c = of_torch(x, (state[:, : memory.n_features], state[:, memory.n_features :]))
                return h, torch.cat([h, c], dim=1)

        state = torch.zeros(1, memory.state_size)
        if batch.state is not None:
            state = torch.from_numpy(batch.state[column : column + 1])
        found = {}
        first = int(np.flatnonzero(batch.valid[:, column])[0])
        last = int(batch.after[batch.valid[:, column], column].max())
        for position in range(first, last + 1):
            raw = {name: torch.from_numpy(leaf[position, column][None]) for name, leaf in named(observations).items()}
            features = self.policy.preprocess(raw if isinstance(observations, dict) else raw[""])
            with torch.set_grad_enabled(torch.is_grad_enabled() and position >= batch.burn_in):
                if position < len(batch.starts) and batch.starts[position, column]:
                    state = torch.zeros_like(state)
                x, state = cell(network.encoder.body(features["x"] if isinstance(features, dict) else features), state)
                if position >= batch.burn_in:
                    legal = torch.from_numpy(self.legal(position, column)[None])
                    found[position] = network.heads(x, None, legal)[0, :, 0]
        return found

    def legal(self, position: int, column: int) -> Any:
        observations: Any = self.batch.observations
        if not isinstance(observations, dict):
            return np.ones(2, np.bool_)
        return observations["action_mask"][position, column] != 0

    def loss(self) -> tuple[Tensor, list[float]]:
        """Return the mean of weight times half the squared TD error over all rows, and the priorities."""
        batch, total, n_rows, priorities = self.batch, torch.zeros(()), 0, []
        for column in range(len(batch)):
            online = self.values(self.policy.network, column)
            with torch.no_grad():
                target = self.values(self.policy.target_network, column)
            errors = []
            for position in np.flatnonzero(batch.valid[:, column]).tolist():
                if position < batch.burn_in:
                    continue
                after = int(batch.after[position, column])
                q = online[after].detach().masked_fill(~torch.from_numpy(self.legal(after, column)), -torch.inf)
                goal = batch.reward[position, column] + batch.discount[position, column] * target[after][q.argmax()]
                td = online[position][int(batch.action[position, column])] - goal
                total = total + float(batch.weight[column]) * td.square()
                errors.append(abs(td.item()))
                n_rows += 1
            priorities.append(0.9 * max(errors) + 0.1 * float(np.mean(errors)) if errors else 0.0)
        return total / n_rows, priorities


def named(observations: Any) -> dict[str, Any]:
    return observations if isinstance(observations, dict) else {"": observations}


@pytest.mark.parametrize("engine", engines("torch", "numpy"))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_step": 3, "dueling": True, "masked": True},
        {"recurrent": "gru", "sequences": tk.Sequences(5, 0)},
        {"recurrent": "transformer", "sequences": tk.Sequences(4, 4, stored_state=False)},
        {"recurrent": Leaky, "sequences": tk.Sequences(7, None), "n_step": 2},
    ],
    ids=["lstm", "masked", "gru", "transformer", "own"],
)
def test_gradients_are_those_of_a_plain_loop_without_any_through_the_burn_in(
    engine: Any, options: dict[str, Any]
) -> None:
    policy, buffer, collector = collected(double=True, value=tk.ExpectedValue("mse"), engine=engine, **options)
    for step in range(2):  # the target network lags behind
        policy.update(sampled(policy, buffer), step=step)
    batch = sampled(policy, buffer)
    buffer.update_priorities(batch.slots, np.arange(1.0, 6.0))
    batch = sampled(policy, buffer)
    loss, priorities = Loop(policy, batch).loss()
    parameters = dict(policy.network.named_parameters())
    wanted = torch.autograd.grad(loss, list(parameters.values()))
    result = policy.update(batch, step=3)
    np.testing.assert_allclose(result.read_priority(), priorities, rtol=1e-4, atol=1e-6)
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    for (name, parameter), gradient in zip(parameters.items(), wanted, strict=True):
        assert parameter.grad is not None
        np.testing.assert_allclose(parameter.grad, gradient, rtol=1e-5, atol=1e-5 * largest, err_msg=name)
    assert policy.engine.name == engine
    collector.close()


def test_the_state_of_a_step_depends_on_its_episode_alone() -> None:
    policy, buffer, collector = collected()
    assert policy.sequences is not None
    batch = sample_sequences(buffer, 200, length=7, burn_in=0, horizon=policy.horizon)
    assert batch.state is not None
    memory: Any = policy.network.encoder
    for column in np.flatnonzero(batch.starts[0])[:20]:
        state = torch.zeros(1, memory.memory.state_size)
        np.testing.assert_array_equal(batch.state[column], 0.0)
        for position in np.flatnonzero(batch.valid[:, column]):
            again = np.flatnonzero((batch.obs[0] == batch.obs[position, column]).all(axis=1))
            for other in again:  # sequences that begin here
                np.testing.assert_allclose(batch.state[other], state[0].detach(), rtol=1e-4, atol=1e-6)
            with torch.no_grad():
                _, state = memory.unroll(torch.from_numpy(batch.obs[position, column][None, None]), state)
    collector.close()


def test_rows_of_some_environments_keep_the_states_of_the_others() -> None:
    policy, _, collector = collected()
    obs = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)
    starts = np.zeros(3, np.bool_)
    together = policy.act(obs, starts=~starts)
    one = policy.act(obs[:1], state=together.state, starts=starts[:1], env_ids=np.array([2]))
    np.testing.assert_array_equal(one.state[:2], together.state[:2])
    assert (one.state[2] != together.state[2]).any()
    np.testing.assert_array_equal(one.extras["state"][0], together.state[2])
    again = policy.act(obs[:1], state=one.state, starts=~starts[:1], env_ids=np.array([2]))
    np.testing.assert_array_equal(again.extras["state"], 0.0)
    collector.close()


@pytest.mark.parametrize(
    "options",
    [
        {"value": tk.QuantileValue(5), "dueling": True},
        {"value": tk.ImplicitQuantileValue(4, target_quantiles=3), "noisy": True},
        {"backup": tk.MunchausenBackup(), "value": tk.ExpectedValue(rescale=1e-3)},
        {"value": tk.CategoricalValue(11), "double": True, "n_step": (1, 3)},
        {"penalty": tk.ConservativePenalty()},
    ],
    ids=["quantile", "implicit", "munchausen", "categorical", "cql"],
)
def test_every_part_learns_from_sequences_the_same_in_every_engine(options: dict[str, Any]) -> None:
    losses = []
    for engine in engines("torch", "numpy"):
        policy, buffer, collector = collected(masked=True, engine=engine, **copy.deepcopy(options))
        for step in range(4):
            policy.update(sampled(policy, buffer), step=step)
        losses.append(policy.read_metrics()["loss"])
        collector.close()
    assert np.isfinite(losses[0])
    np.testing.assert_allclose(losses, losses[0], rtol=1e-3)


@pytest.mark.parametrize("recurrent", ["lstm", "gru"])
@pytest.mark.parametrize("precision", precisions("float32", "bf16"))
def test_a_trainer_learns_from_sequences(recurrent: str, precision: str) -> None:
    policy, _, collector = collected(recurrent=recurrent, precision=precision)
    trainer = tk.OffpolicyTrainer(
        policy,
        collector,
        max_epoch=1,
        step_per_epoch=60,
        batch_size=4,
        update_per_step=0.2,
        seed=1,
        show_progress=False,
    )
    for _, stats, _ in trainer:
        assert np.isfinite(scalar(stats))
    assert policy.n_updates == 12
    collector.close()


def test_a_run_resumes_in_the_middle_of_episodes_with_the_same_bits(tmp_path: Any) -> None:
    def made() -> tk.OffpolicyTrainer[Any]:
        policy, _, collector = collected(n_step=(1, 3), double=True, masked=True)
        return tk.OffpolicyTrainer(
            policy, collector, max_epoch=2, step_per_epoch=40, batch_size=4, update_per_step=0.2, seed=1,
            show_progress=False,
        )  # fmt: skip

    whole, first, second = made(), made(), made()
    whole.run()
    next(iter(first))
    assert (first.train_collector.policy_state != 0).any()
    first.save(tmp_path / "half")
    second.load(tmp_path / "half")
    second.run()
    for name, weights in whole.policy.get_weights().items():
        np.testing.assert_array_equal(second.policy.get_weights()[name], weights, err_msg=name)


def test_predict_hands_the_state_from_call_to_call(tmp_path: Any) -> None:
    policy, _, collector = collected()
    rows = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    state: Any = None
    acted: Any = None
    loaded = tk.load_policy(policy.save(tmp_path / "policy"))
    for row in rows:
        acted = policy.act(row[None], state=None if acted is None else acted.state)
        before = state
        action, state = loaded.predict(row, state=before)
        again, same, extra = loaded.predict(row, state=before, return_extra=True)
        assert action == again == acted.action[0] == extra["q_values"].argmax()
        np.testing.assert_array_equal(same, state)
        assert ("action_prob" in extra) == (before is None)
        assert "state_out" not in extra
        np.testing.assert_array_equal(state, acted.state)
    flat = tk.DQNPolicy.for_envs(collector.envs)
    with pytest.raises(tk.ConfigError, match="this one has none"):
        flat.predict(rows, state=state)
    collector.close()


def scalar(stats: Any) -> float:
    return float(tk.scalars(stats)["update/loss"])


def test_wrong_uses_are_named() -> None:
    policy, buffer, collector = collected()
    with pytest.raises(tk.ConfigError, match="is recurrent and learns from sequences, got a TransitionBatch"):
        policy.update(buffer.sample(4, horizon=policy.horizon), step=0)
    wrong = sample_sequences(buffer, 2, length=2, burn_in=1, horizon=policy.horizon)
    with pytest.raises(tk.ConfigError, match=r"must have 3 rows of burn-in, 9 in all"):
        policy.update(wrong, step=0)
    flat = tk.DQNPolicy.for_envs(collector.envs)
    with pytest.raises(tk.ConfigError, match="learns from rows, a TransitionBatch, got a SequenceBatch"):
        flat.update(sampled(policy, buffer), step=0)
    with pytest.raises(tk.ConfigError, match="sequences has no effect, as the network carries no state"):
        tk.DQNPolicy.for_envs(collector.envs, sequences=SEQUENCES)
    with pytest.raises(tk.ConfigError, match="recurrent must be 'lstm', 'gru', 'transformer' or a function"):
        tk.DQNPolicy.for_envs(collector.envs, recurrent="lstn")
    with pytest.raises(tk.ConfigError, match="a recurrent state must be"):
        policy.act(np.zeros((3, 3), np.float32), state=np.zeros((3, 5)))
    with pytest.raises(
        tk.ConfigError, match=r"DQNPolicy: state must be \[3, 16\], a row per observation, got \(1, 16\)"
    ):
        policy.action_values(np.zeros((3, 3), np.float32), state=np.zeros((1, 16), np.float32))
    with pytest.raises(tk.ConfigError, match=r"DQNPolicy carries no state: leave state out"):
        flat.greedy_values(np.zeros((3, 3), np.float32), np.zeros((3, 16), np.float32))
    with pytest.raises(tk.ConfigError, match=r"updates_per_round draws rows"):
        tk.OffpolicyTrainer(policy, collector, max_epoch=1, step_per_epoch=9, batch_size=2, updates_per_round=4)
    assert flat.state_size == 0
    collector.close()


# ---- SAC and behavior cloning ----


def pushed(**options: Any) -> tuple[tk.SACPolicy, tk.PrioritizedReplayBuffer, tk.Collector]:
    """Return a recurrent SAC policy, with a buffer of its steps in short episodes."""
    envs = tk.make_envs([lambda: gym.wrappers.TimeLimit(Pushing(), 7)] * 3, seed=1)
    settings: dict[str, Any] = {"hidden": (8, 6), "recurrent": "lstm", "sequences": SEQUENCES, "seed": 2, **options}
    policy = tk.SACPolicy.for_envs(envs, **settings)
    buffer = tk.PrioritizedReplayBuffer(200, seed=3)
    collector = tk.Collector(policy, envs, buffer)
    collector.collect(n_step=90)
    return policy, buffer, collector


@pytest.mark.parametrize("engine", engines("torch", "numpy"))
def test_gradients_of_sac_are_those_of_a_plain_loop(engine: Any) -> None:
    policy, buffer, collector = pushed(lr=1e-12, engine=engine, n_step=2)  # so small that no weight changes
    with torch.no_grad():
        for weights in policy.target_critics.parameters():
            weights.mul_(0.9)
    batch = sample_sequences(buffer, 5, length=6, burn_in=3, horizon=policy.horizon)
    state = policy.streams_state()
    noise = policy.loss_noise(5 * 6)
    policy.load_streams_state(state)
    target: Any = copy.deepcopy(policy.target_critics)  # which the update moves
    result = policy.update(batch, step=0)
    assert policy.engine.name == engine

    def losses(column: int) -> tuple[Tensor, Tensor, list[float]]:
        critics, actor, errors = torch.zeros(()), torch.zeros(()), []
        of_actor, of_critics = (network.encoder.part for network in (policy.actor, policy.critics))
        x_actor = recalled(policy, policy.actor, batch, column, of_actor)
        x_critics = recalled(policy, policy.critics, batch, column, of_critics)
        with torch.no_grad():
            x_target = recalled(policy, target, batch, column, of_critics)
        networks: Any = policy
        for position, own in learned_rows(batch):
            if own != column:
                continue
            row = [(position - batch.burn_in) * len(batch) + column]
            after = int(batch.after[position, column])
            with torch.no_grad():
                unit, log_prob = policy.distribution.draw(
                    networks.actor(Known(x_actor[after])), noise["next_noise"][row]
                )
                value = target(Known(x_target[after]), unit).amin() - log_prob  # temperature 1
                goal = batch.reward[position, column] + batch.discount[position, column] * value
            done = policy.action_scale.to_unit(torch.from_numpy(batch.action[position, column][None]))
            td = networks.critics(Known(x_critics[position]), done.clamp(-1, 1)) - goal
            critics = critics + 0.5 * td.square().sum()
            errors.append(float(td.detach().abs().mean()))
            unit, log_prob = policy.distribution.draw(networks.actor(Known(x_actor[position])), noise["noise"][row])
            q = networks.critics(Known(x_critics[position].detach()), unit).amin()
            actor = actor + log_prob.sum() - q
        return critics, actor, errors

    found = [losses(column) for column in range(len(batch))]
    assert_gradients(policy.critics, sum((one[0] for one in found), torch.zeros(())) / batch.n_rows)
    assert_gradients(policy.actor, sum((one[1] for one in found), torch.zeros(())) / batch.n_rows)
    priorities = [0.9 * max(errors) + 0.1 * float(np.mean(errors)) for _, _, errors in found]
    np.testing.assert_allclose(result.read_priority(), priorities, rtol=1e-4)
    collector.close()


def test_a_run_of_sac_resumes_in_the_middle_of_episodes_with_the_same_bits(tmp_path: Any) -> None:
    def made() -> tk.OffpolicyTrainer[Any]:
        policy, _, collector = pushed()
        return tk.OffpolicyTrainer(
            policy, collector, max_epoch=2, step_per_epoch=30, batch_size=4, update_per_step=0.2, seed=1,
            show_progress=False,
        )  # fmt: skip

    whole, first, second = made(), made(), made()
    whole.run()
    next(iter(first))
    first.save(tmp_path / "half")
    second.load(tmp_path / "half")
    second.run()
    for name, weights in whole.policy.get_weights().items():
        np.testing.assert_array_equal(second.policy.get_weights()[name], weights, err_msg=name)
    action, state = second.policy.predict(np.zeros(3, np.float32))
    assert action.shape == (2,)
    assert state.shape == (1, 2 * 6 + 2 * 8)  # output and cell, behind the actor's last and the critics' first layer


def test_random_steps_are_stored_with_a_state_of_zero() -> None:
    _, buffer, collector = pushed()
    before = set(buffer.slots().tolist())
    collector.collect(n_step=30, random=True)
    added = [slot for slot in buffer.slots().tolist() if slot not in before]
    assert len(added) == 30
    assert not buffer.get(added, ["state"]).extras["state"].any()
    assert buffer.get(sorted(before), ["state"]).extras["state"].any()
    collector.close()


def test_wrong_uses_of_recurrent_sac_are_named() -> None:
    envs = tk.make_envs([Pushing], seed=1)
    with pytest.raises(tk.ConfigError, match="sequences has no effect, as the network carries no state"):
        tk.SACPolicy.for_envs(envs, sequences=SEQUENCES)
    with pytest.raises(tk.ConfigError, match="needs a state in both the actor and the critics, or in neither"):
        tk.SACPolicy(
            tk.nets.ActorNetwork((3,), 4, recurrent="gru"), tk.nets.CriticNetwork((3,), 2),
            action_space=envs.action_space,
        )  # fmt: skip


# ---- predicted returns ----


class Episodes:
    """A recorder of one environment's episodes: observations, the last one's successor too, rewards, the end."""

    def __init__(self) -> None:
        self.ended: list[tuple[list[Any], list[float], bool]] = []
        self._obs: list[Any] = []
        self._rewards: list[float] = []

    def add(self, step: Any) -> None:
        self._obs.append(step.obs[0].copy())
        self._rewards.append(float(step.reward[0]))
        if step.terminated[0] or step.truncated[0]:
            self.ended.append(([*self._obs, step.next_obs[0].copy()], self._rewards, not step.terminated[0]))
            self.cut(step.env_ids)

    def cut(self, env_ids: Any) -> None:
        self._obs, self._rewards = [], []


def last_features(network: Any, observations: list[Any]) -> Tensor:
    """Return what a network's memory gives [1, F] for the last observation of an episode, step by step."""
    state = torch.zeros(1, network.encoder.memory.state_size)
    for obs in observations:
        x, state = network.encoder.memory.step(network.encoder.body(torch.from_numpy(obs[None])), state)
    return x


@torch.no_grad()
def best_value(policy: Any, observations: list[Any]) -> float:
    """Return the value of the greedy action after all observations of an episode."""
    if isinstance(policy, tk.DQNPolicy):
        network: Any = policy.network
        return float(policy.value.mean(network(Known(last_features(network, observations))).outputs).max())
    numbers = policy.actor(Known(last_features(policy.actor, observations)))
    unit = policy.distribution.mode(numbers, None)
    return float(policy.critics(Known(last_features(policy.critics, observations)), unit).amin())


@pytest.mark.parametrize("of_a_box", [False, True])
def test_the_rest_of_a_truncated_episode_is_predicted_from_the_state_at_its_end(of_a_box: bool) -> None:
    policy, _, collector = pushed() if of_a_box else collected(value=tk.QuantileValue(3), dueling=True)
    kind: Any = Pushing if of_a_box else lambda: Counting(False)
    test, rows = tk.Collector(policy, tk.make_envs([lambda: gym.wrappers.TimeLimit(kind(), 7)])), Episodes()
    test.recorders.append(rows)
    stats = tk.Evaluation(test, duration=8, seed=5).run(0)
    expected, starts = [], []
    for observations, rewards, is_truncated in rows.ended:
        rest = best_value(policy, observations) if is_truncated else 0.0
        expected.append(sum(policy.horizon.gamma**t * reward for t, reward in enumerate([*rewards, rest])))
        starts.append(best_value(policy, observations[:1]))
    assert 1 < sum(is_truncated for _, _, is_truncated in rows.ended) < len(expected)
    for own, wanted in ((stats.discounted_returns, expected), (stats.start_values, starts)):
        np.testing.assert_allclose([own.mean, own.std], [np.mean(wanted), np.std(wanted)], rtol=1e-4, atol=1e-6)
    collector.close(), test.close()


def test_values_along_an_episode_are_those_of_its_states() -> None:
    policy, _, collector = collected(sequences=tk.Sequences(6, 3, stored_state=False))

    def make() -> Any:
        return gym.wrappers.TimeLimit(Counting(False), 7)

    (axes,) = tk.plot.episode_values(policy, make, seed=3).axes
    test, rows = tk.Collector(policy, tk.make_envs(make, 1)), Episodes()
    test.recorders.append(rows)
    test.collect(n_episode=1, explore=False, seed=3)
    ((observations, *_),) = rows.ended
    expected = [best_value(policy, observations[: t + 1]) for t in range(len(observations) - 1)]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), expected, rtol=1e-4, atol=1e-6)
    collector.close(), test.close()


# ---- on-policy ----


def rolled_out(kind: Any, **options: Any) -> tuple[Any, Any, tk.Collector]:
    """Return a recurrent actor-critic and its second rollout, whose first rows continue episodes."""
    envs = tk.make_envs([lambda: gym.wrappers.TimeLimit(Counting(True), 7)] * 3, seed=1)
    policy = kind.for_envs(envs, hidden=(8,), sequences=tk.Sequences(5, 0), max_grad_norm=None, seed=2, **options)
    collector = tk.Collector(policy, envs, tk.RolloutBuffer())
    collector.collect(n_step=30)
    list(policy.learn(collector.buffer.read(policy.horizon, policy.columns), step=0))
    policy.read_metrics()
    collector.buffer.clear()
    collector.collect(n_step=39)
    return policy, collector.buffer.read(policy.horizon, policy.columns), collector


def loss_by_hand(policy: Any, rollout: Any) -> Tensor:
    """Return A2C's loss of a rollout: row by row, with gradients through 5 rows of an environment at most."""
    total, n_rows = torch.zeros(()), 0
    last = {int(row): index for index, row in enumerate(rollout.last_rows)}
    n_envs = rollout.reward.shape[1]
    for env in range(n_envs):
        values, nexts, terms = [], [], []
        state, n_since = torch.zeros(0), 0
        for time in range(int(rollout.n_rows[env])):
            n_since = 0 if rollout.extras["t"][time, env] == 0 or time == 0 else n_since + 1
            if n_since % 5 == 0:
                state = torch.from_numpy(rollout.extras["state"][time, env][None])
            np.testing.assert_allclose(state.detach()[0], rollout.extras["state"][time, env], atol=1e-6)
            obs = {"x": torch.from_numpy(rollout.obs["x"][time, env][None])}
            (numbers, value), results = policy._network_state.call(policy.network, obs, state)
            state = results["state_out"]
            legal = torch.from_numpy(rollout.obs["action_mask"][time, env][None] != 0)
            action = torch.as_tensor(rollout.action[time, env])[None]
            terms.append(
                (policy.distribution.log_prob(numbers, action, legal), policy.distribution.entropy(numbers, legal))
            )
            values.append(value)
            after = 0.0
            if (position := time * n_envs + env) in last:
                obs = {"x": torch.from_numpy(rollout.last_obs["x"][last[position]][None])}
                after = policy._network_state.call(policy.network, obs, state.detach())[0].value.item()
            nexts.append(after)
        advantage = 0.0
        for time in reversed(range(len(values))):
            if not rollout.ended[time, env]:
                nexts[time] = values[time + 1].item()
            td = rollout.reward[time, env] + policy.horizon.gamma * nexts[time] - values[time].item()
            advantage = td + (0.0 if rollout.ended[time, env] else policy.horizon.gamma * policy.lam * advantage)
            log_prob, entropy = terms[time]
            error = values[time] - (values[time].detach() + advantage)
            total = total - log_prob * advantage + 0.5 * error.square() - 0.01 * entropy
            n_rows += 1
    return total.squeeze() / n_rows


@pytest.mark.parametrize(
    "options", [{"recurrent": "lstm"}, {"recurrent": "gru", "shared": True}], ids=["apart", "shared"]
)
def test_gradients_of_a_rollout_are_those_of_a_plain_loop(options: dict[str, Any]) -> None:
    policy, rollout, collector = rolled_out(tk.A2CPolicy, **options)
    assert rollout.n_rows.tolist() == [13, 13, 13]
    assert (rollout.extras["t"][0] > 0).any(), "an episode continues from the rollout before"
    parameters = dict(policy.network.named_parameters())
    loss = loss_by_hand(policy, rollout)
    wanted = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    list(policy.learn(rollout, step=0))
    np.testing.assert_allclose(policy.read_metrics()["loss"], loss.item(), rtol=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in wanted if gradient is not None)
    for (name, parameter), gradient in zip(parameters.items(), wanted, strict=True):
        assert parameter.grad is not None
        np.testing.assert_allclose(parameter.grad, gradient, rtol=1e-5, atol=1e-5 * largest, err_msg=name)
    collector.close()


def test_the_first_ratio_of_a_rollout_is_one() -> None:
    policy, rollout, collector = rolled_out(tk.PPOPolicy, recurrent="transformer")
    next(iter(policy.learn(rollout, step=0, batch_size=20)))
    metrics = policy.read_metrics()
    assert abs(metrics["approx_kl"]) < 1e-7  # of ratios that float32 rounds
    assert metrics["clip_share"] == 0.0
    collector.close()


def test_wrong_uses_of_recurrent_actors_are_named() -> None:
    envs = tk.make_envs("CartPole-v1", 2)
    with pytest.raises(tk.ConfigError, match="sequences has no effect, as the network carries no state"):
        tk.PPOPolicy.for_envs(envs, sequences=tk.Sequences(8, 0))
    with pytest.raises(tk.ConfigError, match="sequences must have burn_in=0 and stored states"):
        tk.PPOPolicy.for_envs(envs, recurrent="lstm", sequences=tk.Sequences(8, 4))
