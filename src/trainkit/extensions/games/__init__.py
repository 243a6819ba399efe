"""Games of several agents: PettingZoo's and RLlib's APIs, a policy for each agent, self-play, tournaments.

Added by a kind of environments, whose backend makes a row of each agent; a policy of several policies, with its
behavior policy, its learners and its buffer; a replay buffer of the rows of one moment, and the backup `VDNBackup`
that needs it; and the callback `OpponentPool`, by which the option `self_play` of presets works. The presets `ippo` and
`mappo` need it, too.
"""

NAMES = {
    "MultiAgentBuffer": "multi_agent_buffer:MultiAgentBuffer",
    "MultiAgentPolicy": "multi_agent_policy:MultiAgentPolicy",
    "VDNBackup": "vdn:VDNBackup",
    "buffer.LockstepReplayBuffer": "lockstep:LockstepReplayBuffer",
    "buffer.MultiAgentBuffer": "multi_agent_buffer:MultiAgentBuffer",
    "callbacks.OpponentPool": "opponent_pool:OpponentPool",
    "envs.ObserveState": "game_state:ObserveState",
    "envs.group_agents": "agent_groups:group_agents",
    "policy.GameEpisode": "game_behavior:GameEpisode",
    "policy.MultiAgentPolicy": "multi_agent_policy:MultiAgentPolicy",
    "policy.VDNBackup": "vdn:VDNBackup",
    "trainer.Tournament": "tournament:Tournament",
    "trainer.WinRate": "tournament:WinRate",
    "trainer.tournament": "tournament:tournament",
}
BUFFERS = {"LockstepReplayBuffer": "lockstep:LockstepReplayBuffer"}
ENV_KINDS = {"games": "kind:GAMES"}
OPPONENTS = {"self_play": "self_play:against_copies"}
