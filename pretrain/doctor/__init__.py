"""Whether this machine, network, folder and data can carry a run, asked before the run is started."""
