"""Running statistics of several actors become one, as if all rows had been seen in one place."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

import trainkit as tk
from trainkit.core.data import ReturnScale, Transition
from trainkit.core.spaces import Spaces
from trainkit.nets.preprocess import Normalizer

BOX = gym.spaces.Box(-10, 10, (3,), np.float32)
SPACES = Spaces(observation_space=BOX, action_space=gym.spaces.Discrete(2))


def observed(*parts: np.ndarray, folds: bool = True) -> Normalizer:
    own = Normalizer(parts[0].shape[1])
    for part in parts:
        own.observe(torch.from_numpy(part))
        if folds:
            own.fold()
    return own


def rows(seed: int, n: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, 3)) * [1, 20, 0.1] + 7 * seed).astype(np.float32)


class TestNormalizer:
    @pytest.mark.parametrize("sizes", [(5, 7), (1, 1), (1, 400), (400, 3), (0, 6), (6, 0)])
    def test_two_together_are_the_moments_of_the_concatenation(self, sizes: tuple[int, int]) -> None:
        one, two = rows(1, sizes[0]), rows(2, sizes[1])
        merged, other = (observed(part) if len(part) else Normalizer(3) for part in (one, two))
        merged.merge(other)
        whole = np.concatenate([one, two]).astype(np.float64)

        assert int(merged.known.count) == len(whole)
        assert_allclose(merged.known.mean.numpy(), whole.mean(axis=0), rtol=1e-12)
        assert_allclose(merged.known.square.numpy(), ((whole - whole.mean(axis=0)) ** 2).sum(axis=0), rtol=1e-10)
        features = torch.from_numpy(rows(3, 4))
        expected = (features.numpy() - whole.mean(axis=0)) / np.sqrt(whole.var(axis=0) + 1e-8)
        assert_allclose(merged(features).numpy(), expected.clip(-10, 10), rtol=1e-4, atol=1e-4)

    def test_rows_that_are_not_in_use_yet_count_and_the_other_stays_as_it_was(self) -> None:
        one, two = observed(rows(1, 5), folds=False), observed(rows(2, 6), folds=False)
        before = {name: value.clone() for name, value in two.state_dict().items()}
        one.merge(two)

        assert int(one.known.count) == 11
        assert all(torch.equal(before[name], value) for name, value in two.state_dict().items())

    def test_three_in_any_order_are_the_same(self) -> None:
        parts = [rows(seed, 10 * seed + 3) for seed in range(3)]
        means = []
        for order in ((0, 1, 2), (2, 0, 1)):
            merged = Normalizer(3)
            for i in order:
                merged.merge(observed(parts[i]))
            means.append(merged.known.mean.numpy())
        assert_allclose(means[0], means[1], rtol=1e-12)
        assert_allclose(means[0], np.concatenate(parts).astype(np.float64).mean(axis=0), rtol=1e-12)

    @pytest.mark.parametrize("other", [Normalizer(2), None])
    def test_itself_and_other_features_are_rejected(self, other: Normalizer | None) -> None:
        own = Normalizer(3)
        with pytest.raises(tk.ConfigError, match=r"Normalizer.merge needs another normalizer of 3 features"):
            own.merge(own if other is None else other)


class TestReturnScale:
    def seen(self, rewards: list[float]) -> ReturnScale:
        scale = ReturnScale(0.5)
        for reward in rewards:
            scale.observe(np.array([reward]), np.array([False]), np.array([0]))
        return scale

    def returns(self, rewards: list[float]) -> list[float]:
        found, running = [], 0.0
        for reward in rewards:
            running = 0.5 * running + reward
            found.append(running)
        return found

    @pytest.mark.parametrize(("ours", "theirs"), [([1.0, 2.0, 5.0], [-3.0, 8.0]), ([], [1.0, 4.0]), ([2.0, 9.0], [])])
    def test_two_together_have_the_deviation_of_all_returns(self, ours: list[float], theirs: list[float]) -> None:
        merged = self.seen(ours)
        merged.merge(self.seen(theirs))
        whole = np.array(self.returns(ours) + self.returns(theirs))

        assert merged.n_observed == len(whole)
        assert merged.deviation == pytest.approx(np.sqrt(whole.var() + 1e-8), rel=1e-12)

    def test_another_gamma_and_itself_are_rejected(self) -> None:
        own = ReturnScale(0.5)
        for other in (own, ReturnScale(0.9)):
            with pytest.raises(tk.ConfigError, match=r"ReturnScale.merge needs another scale of gamma 0.5"):
                own.merge(other)


def step(obs: np.ndarray, rng: np.random.Generator) -> Transition:
    n = len(obs)
    flags = np.zeros(n, np.bool_)
    return Transition(obs, np.zeros(n, np.int64), rng.normal(size=n), obs, flags, flags, np.arange(n), {})


def make(**parts: Any) -> tk.PPOPolicy:
    own: dict[str, Any] = {"normalize_obs": True, "reward": "return_scale", "gamma": 0.5, "device": "cpu"}
    return tk.PPOPolicy.for_envs(SPACES, hidden=(4,), **own | parts)


class TestPolicies:
    def test_a_learner_takes_in_what_its_actors_observed(self) -> None:
        learner, alone = make(), make()
        for seed in range(3):
            actor = make()
            for policy in (actor, alone):
                rng = np.random.default_rng(seed)
                policy.observe(step(rows(seed, 20), rng))
                policy.cut(np.arange(20))
            learner.merge_statistics(actor)
        alone.statistics.fold()

        obs = torch.from_numpy(rows(9, 5))
        assert_allclose(learner.features(obs.numpy()).numpy(), alone.features(obs.numpy()).numpy(), rtol=1e-6)
        assert learner.horizon.return_scale is not None
        assert alone.horizon.return_scale is not None
        assert learner.horizon.return_scale.deviation == pytest.approx(alone.horizon.return_scale.deviation, rel=1e-12)

    def test_a_preprocessing_in_several_parts_merges_part_by_part(self) -> None:
        def chain() -> nn.Sequential:
            return nn.Sequential(nn.Identity(), tk.nets.Preprocess(BOX, normalize=True))

        one, two = make(preprocess=chain()), make(preprocess=chain())
        for seed, policy in enumerate((one, two)):
            policy.observe(step(rows(seed, 10), np.random.default_rng(seed)))
        one.merge_statistics(two)
        whole = np.concatenate([rows(0, 10), rows(1, 10)]).astype(np.float64)

        assert_allclose(one.preprocess[1].normalizers[0].known.mean.numpy(), whole.mean(axis=0), rtol=1e-12)

    def test_policies_that_do_not_normalize_the_same_are_rejected(self) -> None:
        for other in (make(normalize_obs=False), make(reward=None)):
            with pytest.raises(tk.ConfigError, match="policies that normalize the same"):
                make().merge_statistics(other)
        with pytest.raises(tk.ConfigError, match="same preprocessing in both policies"):
            make(preprocess=nn.Sequential(tk.nets.Preprocess(BOX, normalize=True))).merge_statistics(make())
