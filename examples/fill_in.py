"""What an exported folder puts into the gaps of a few sentences: `python -m examples.fill_in FOLDER OUT`.

OUT becomes a JSON object, each sentence with its five best words, best first.
"""

import json
import sys

from transformers import logging, pipeline

from configs.atomic import write_text

SENTENCES = [
    "The congress of the united [MASK] has passed the bill.",
    "We must reduce [MASK] for working families.",
    "The treaty between the two [MASK] was ratified by the senate.",
    "Our army and [MASK] are ready to defend the country.",
]


def main(folder: str, out: str) -> None:
    """Fill the gaps with the model in `folder`."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    fill = pipeline("fill-mask", model=folder, top_k=5)
    words = {text: [guess["token_str"] for guess in fill(text)] for text in SENTENCES}
    write_text(out, json.dumps(words, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
