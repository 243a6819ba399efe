"""Warnings that name a run which does not learn, with the remedy: a callback, which presets add."""

NAMES = {
    "callbacks.Diagnosis": "diagnosis:Diagnosis",
    "trainer.DIAGNOSIS_RULES": "rules:DIAGNOSIS_RULES",
}
DEFAULT_CALLBACKS = {"diagnosis": "diagnosis:Diagnosis"}
