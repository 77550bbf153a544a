"""The kinds of work, one module each, with a function run(bench) that returns the results."""
