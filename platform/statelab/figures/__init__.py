"""Pictures of runs and models, one figure a function; Matplotlib is imported here alone."""
