"""Statistical methods: steady state, verdicts, causes of changes, history, alerts and bisection."""
