"""Records to statistics to verdicts: pure functions."""
