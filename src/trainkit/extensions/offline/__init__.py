"""Learning from recorded episodes: datasets, BC, BCQ and CQL, off-policy evaluation.

Added by presets, policies, the callbacks `DatasetWriter` and `OffPolicyEvaluation`, and buffers of recorded rows, which
`OfflineTrainer` learns from.
"""

NAMES = {
    "BCPolicy": "bc:BCPolicy",
    "DiscreteBCQPolicy": "bcq:DiscreteBCQPolicy",
    "MixedBuffer": "mixed:MixedBuffer",
    "load_dataset": "loading:load_dataset",
    "buffer.MixedBuffer": "mixed:MixedBuffer",
    "callbacks.DatasetWriter": "dataset_writer:DatasetWriter",
    "callbacks.OffPolicyEvaluation": "estimated_return:OffPolicyEvaluation",
    "datasets.Estimate": "off_policy_evaluation:Estimate",
    "datasets.HasActionProbability": "off_policy_evaluation:HasActionProbability",
    "datasets.HasActionValues": "off_policy_evaluation:HasActionValues",
    "datasets.StreamedDataset": "streaming:StreamedDataset",
    "datasets.direct_method": "off_policy_evaluation:direct_method",
    "datasets.doubly_robust": "off_policy_evaluation:doubly_robust",
    "datasets.from_minari": "loading:from_minari",
    "datasets.importance_sampling": "off_policy_evaluation:importance_sampling",
    "datasets.load_dataset": "loading:load_dataset",
    "datasets.stream_dataset": "streaming:stream_dataset",
    "datasets.to_minari": "minari_export:to_minari",
    "datasets.weighted_importance_sampling": "off_policy_evaluation:weighted_importance_sampling",
    "policy.BCPolicy": "bc:BCPolicy",
    "policy.DiscreteBCQPolicy": "bcq:DiscreteBCQPolicy",
    "presets.BCPreset": "presets:BCPreset",
    "presets.BCQPreset": "presets:BCQPreset",
    "presets.BCQSettings": "presets:BCQSettings",
    "presets.BCSettings": "presets:BCSettings",
    "presets.CQLPreset": "presets:CQLPreset",
    "presets.CQLSettings": "presets:CQLSettings",
    "presets.OfflinePreset": "presets:OfflinePreset",
    "presets.OfflineSettings": "presets:OfflineSettings",
    "trainer.DatasetWriter": "dataset_writer:DatasetWriter",
    "trainer.FittedQ": "fitted_q_evaluation:FittedQ",
    "trainer.OffPolicyEvaluation": "estimated_return:OffPolicyEvaluation",
    "trainer.fitted_q_evaluation": "fitted_q_evaluation:fitted_q_evaluation",
}
PRESETS = {"bc": "presets:bc", "cql": "presets:cql", "bcq": "presets:bcq"}
