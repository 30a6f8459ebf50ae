"""Whether a recording can carry the answer: what it lacks, how that shows, which figures it makes a bound or void."""
