"""`python -m data.tokenizer CONFIG [key=value ...]`: trains a tokenizer on the sources that batches come from."""

from configs import run_command
from data.tokenizer.train import USAGE, TokenizerConfig, main

if __name__ == "__main__":
    run_command(main, TokenizerConfig, USAGE)
