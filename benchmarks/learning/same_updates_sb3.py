"""Stable-Baselines3's side of the same updates: its own `train`, on rows and weights that trainkit wrote.

Runs in an environment of its own, and so imports nothing of trainkit.
"""

import json
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import torch

N_UPDATES, BATCH, N_OBS, N_ACTIONS, HIDDEN, QUANTILES = 300, 64, 5, 2, (32, 32), 7
LR, TAU = 1e-3, 0.005


class Rows:
    """A replay buffer that gives the rows of an update."""

    def __init__(self, found) -> None:
        self.found, self.number = found, 0

    def sample(self, *_, **__):
        get = lambda name: torch.as_tensor(self.found[f"{self.number}/{name}"])  # noqa: E731
        discount = get("discount").unsqueeze(1)
        return SimpleNamespace(
            observations=get("obs"),
            actions=get("action"),
            next_observations=get("next_obs"),
            rewards=get("reward").unsqueeze(1),
            dones=torch.zeros_like(discount),
            discounts=discount,
        )


class Env(gym.Env):
    """The spaces of the rows."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (N_OBS,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (N_ACTIONS,), np.float32)


def make(kind):
    """Return the learner."""
    from sb3_contrib import TQC
    from stable_baselines3 import TD3

    network = {"net_arch": list(HIDDEN)}
    common = {"learning_rate": LR, "batch_size": BATCH, "gamma": 1.0, "tau": TAU, "device": "cpu"}
    if kind == "td3":
        model = TD3("MlpPolicy", Env(), policy_kwargs=network, **common)
    else:
        network |= {"n_quantiles": QUANTILES, "n_critics": 2}
        model = TQC("MlpPolicy", Env(), policy_kwargs=network, top_quantiles_to_drop_per_net=2, **common)
        model.actor.action_dist.epsilon = 0.0  # 1e-6 is added to 1 - tanh(u)**2 otherwise
    model._logger = SimpleNamespace(record=lambda *_, **__: None)
    return model


def linears(module):
    """Return the linear layers of a network in order, of the actor of TQC with its two heads last."""
    return [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)]


def critics_of(model, critic):
    """Return the separate networks of a critic."""
    return critic.quantile_critics if hasattr(critic, "quantile_critics") else critic.q_networks


def actor_layers(model, actor):
    """Return the layers of an actor, and whether the last ones are heads of one layer of trainkit's."""
    return (
        linears(actor.mu) if model.__class__.__name__ == "TD3" else [*linears(actor.latent_pi), actor.mu, actor.log_std]
    )


def arrays_of_actor(model, actor, read):
    """Return {trainkit's name: array} of an actor, where `read` gives (weight, bias) of a layer."""
    layers = actor_layers(model, actor)
    hidden = layers[: len(HIDDEN)]
    own = {}
    for position, layer in enumerate(hidden):
        own[f"encoder.body.layers.{position}.weight"], own[f"encoder.body.layers.{position}.bias"] = read(layer)
    heads = [read(layer) for layer in layers[len(HIDDEN) :]]
    own["head.layers.0.weight"] = np.concatenate([weight for weight, _ in heads])
    own["head.layers.0.bias"] = np.concatenate([bias for _, bias in heads])
    return own


def arrays_of_critics(model, critic, read):
    """Return {trainkit's name: array} of critics, stacked."""
    own = {}
    networks = [[read(layer) for layer in linears(one)] for one in critics_of(model, critic)]
    for position in range(len(HIDDEN) + 1):
        own[f"layers.{position}.weight"] = np.stack([one[position][0] for one in networks])
        own[f"layers.{position}.bias"] = np.stack([one[position][1] for one in networks])[:, None]
    return own


def values(layer):
    """Return a layer's weights and biases."""
    return layer.weight.detach().numpy(), layer.bias.detach().numpy()


def gradients(layer):
    """Return the gradients of a layer's weights and biases."""
    return layer.weight.grad.numpy(), layer.bias.grad.numpy()


@torch.no_grad()
def load(model, given) -> None:
    """Load weights by trainkit's names."""

    def set_layer(layer, weight, bias) -> None:
        layer.weight.copy_(torch.as_tensor(weight))
        layer.bias.copy_(torch.as_tensor(bias))

    def load_actor(actor, prefix) -> None:
        layers = actor_layers(model, actor)
        for position, layer in enumerate(layers[: len(HIDDEN)]):
            name = f"{prefix}.encoder.body.layers.{position}"
            set_layer(layer, given[f"{name}.weight"], given[f"{name}.bias"])
        heads = layers[len(HIDDEN) :]
        weights = np.split(given[f"{prefix}.head.layers.0.weight"], len(heads))
        biases = np.split(given[f"{prefix}.head.layers.0.bias"], len(heads))
        for layer, weight, bias in zip(heads, weights, biases, strict=True):
            set_layer(layer, weight, bias)

    def load_critics(critic, prefix) -> None:
        for number, network in enumerate(critics_of(model, critic)):
            for position, layer in enumerate(linears(network)):
                name = f"{prefix}.layers.{position}"
                set_layer(layer, given[f"{name}.weight"][number], given[f"{name}.bias"][number, 0])

    load_actor(model.actor, "actor")
    load_critics(model.critic, "critics")
    load_critics(model.critic_target, "target_critics")
    if "target_actor.head.layers.0.weight" in given:
        load_actor(model.actor_target, "target_actor")
    if "learned_temperature.log" in given:
        model.log_ent_coef.copy_(torch.as_tensor(given["learned_temperature.log"]).reshape(1))


def norm(arrays):
    """Return the norm of all arrays."""
    return float(np.sqrt(sum(np.sum(np.asarray(one, np.float64) ** 2) for one in arrays)))


def distance(own, theirs):
    """Return the norm of the difference, relative to that of `own`, of arrays by name."""
    return norm([own[name] - theirs[name] for name in own]) / norm(own.values())


def take_update(model, rows, number):
    """Take an update; return the gradients of the steps that were taken, at the moment of the optimizer's step."""
    found, kept = {}, {}
    for name, network, read in (("critic", model.critic, arrays_of_critics), ("actor", model.actor, arrays_of_actor)):
        kept[name] = step = network.optimizer.step

        def step_of(*_, name=name, network=network, read=read, step=step):
            found[name] = {path: one.copy() for path, one in read(model, network, gradients).items()}
            return step()

        network.optimizer.step = step_of
    rows.number = number
    torch.manual_seed(number)  # noqa: TID251  # the peer draws from the global generator
    model.train(1, BATCH)
    model.critic.optimizer.step, model.actor.optimizer.step = kept["critic"], kept["actor"]
    return found


def main() -> None:
    """Compare, and print the largest differences."""
    kind, path = sys.argv[1:]
    torch.set_num_threads(1)
    found = dict(np.load(path))
    rows, model, largest = Rows(found), make(kind), {"critic": 0.0, "actor": 0.0}
    model.replay_buffer = rows
    before = {name.removeprefix("1/weights/"): one for name, one in found.items() if name.startswith("1/weights/")}
    factor = {"critic": 1.0 if kind == "td3" else 0.5, "actor": 1.0}  # the mean over critics
    for number in range(1, N_UPDATES + 1):
        prefix = f"{number}/weights/"
        load(model, {name.removeprefix(prefix): one for name, one in found.items() if name.startswith(prefix)})
        for step, own in take_update(model, rows, number).items():
            ours = {name: factor[step] * found[f"{number}/gradient/{step}/{name}"] for name in own}
            largest[step] = max(largest[step], distance(own, ours))
    model = make(kind)
    model.replay_buffer = rows
    load(model, before)
    for number in range(1, N_UPDATES + 1):
        take_update(model, rows, number)
    own = {f"actor.{name}": one for name, one in arrays_of_actor(model, model.actor, values).items()}
    own |= {f"critics.{name}": one for name, one in arrays_of_critics(model, model.critic, values).items()}
    after = {name: found[f"after/{name}"] for name in own}
    moved = distance(own, {name: before[name] for name in own})
    print(json.dumps({**largest, "weights": distance(own, after), "moved": moved}))


if __name__ == "__main__":
    main()
