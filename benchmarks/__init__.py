"""script/bench: measure whole processes several times, as ratios to a floor or a peer measured in the same run."""
