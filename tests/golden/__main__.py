"""Write the golden checkpoint, the saved policy, and what is in them."""

import json
import shutil

from tests.golden.run import FOLDER, contents, make

if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    with make() as trainer:
        trainer.run(epochs=1)
        trainer.save(FOLDER / "trainer")
        trainer.policy.save(FOLDER / "policy")
        (FOLDER / "contents.json").write_text(json.dumps(contents(trainer), indent=1) + "\n")
