"""Evaluation in a process of its own, while training continues: an evaluation with a worker."""

NAMES = {
    "BackgroundEvaluation": "background:BackgroundEvaluation",
    "trainer.BackgroundEvaluation": "background:BackgroundEvaluation",
}
