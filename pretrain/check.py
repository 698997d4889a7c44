"""`python -m pretrain.check CONFIG [key=value …]`: does an encoder of this configuration work?"""

from configs import run_command
from encoder.selftest import CheckConfig, main

if __name__ == "__main__":
    run_command(main, CheckConfig)
