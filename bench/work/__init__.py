"""The kinds of work that are measured, one a module. Each has run(bench), which returns its results."""
